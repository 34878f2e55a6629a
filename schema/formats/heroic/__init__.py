"""Message formats `heroic-json` and `heroic-proto`."""
