"""Which series there are: names by pattern, counts, limits on new ones, how long points are kept."""
