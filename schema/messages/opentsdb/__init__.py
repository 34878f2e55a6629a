"""Message formats `opentsdb-json`, `opentsdb-text` and `opentsdb-annotations`."""
