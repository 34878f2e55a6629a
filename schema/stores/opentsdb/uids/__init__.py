"""OpenTSDB's names and UIDs: how names are stored, their table and its repair, and the series of a row."""
