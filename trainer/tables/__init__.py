"""Figures over seeds, and tables of them for people and programs: no other room writes one."""
