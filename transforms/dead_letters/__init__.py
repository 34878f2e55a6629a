"""Rejected input: the side output of every step, where it is stored, and its replay."""
