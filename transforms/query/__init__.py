"""Reads the points, rollups, annotations and histograms of a query."""
