"""Message formats `kairosdb-json` and `kairosdb-text`."""
