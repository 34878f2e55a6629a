"""Declarations in TOML: read, checked and explained."""
