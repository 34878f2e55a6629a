"""Message formats `opentsdb-json`, `opentsdb-text`, `opentsdb-histogram` and `opentsdb-annotations`."""
