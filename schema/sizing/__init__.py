"""What a load of points costs in Bigtable: measured on a sample by the codec, then plain arithmetic."""
