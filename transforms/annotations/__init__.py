"""Annotations stored by compare-and-set."""
