"""The endpoints of `timebeam serve` that take points: parsed, published to Pub/Sub, then answered."""

FORMATS = (
    "opentsdb-json",
    "opentsdb-text",
    "opentsdb-histogram",
    "influx",
    "kairosdb-json",
    "heroic-json",
    "prometheus-remote-write",
    "otlp",
)
"""The message formats of these endpoints: what the stream names in `--formats`."""
