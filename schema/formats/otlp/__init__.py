"""Message format `otlp`: metrics of OpenTelemetry, as protobuf and as JSON."""
