"""The points, annotations and histograms of one layout read back, copied and compared."""
