"""Figures and tables in the formats that people and programs read; no other room writes one."""
