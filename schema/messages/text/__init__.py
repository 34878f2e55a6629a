"""What formats of text share: points of many lines or JSON elements read as columns."""
