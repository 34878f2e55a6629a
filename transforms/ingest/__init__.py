"""Points into the tables of a layout: names to UIDs, series to keys, rows packed."""
