"""What a query reads: points, rollups, annotations, histograms."""
