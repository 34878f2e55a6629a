"""Columns of data rows: qualifiers, values, append and compacted columns, annotations, histograms."""
