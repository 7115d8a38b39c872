"""Figures and tables as people and programs read them; nothing else writes one."""
