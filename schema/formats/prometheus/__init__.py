"""Message format `prometheus-remote-write`: versions 1.0 and 2.0."""
