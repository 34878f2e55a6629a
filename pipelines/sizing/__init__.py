"""The cost of a load of points in Bigtable: measured on an encoded sample, then plain arithmetic."""
