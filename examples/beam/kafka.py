"""Points of a Kafka topic into OpenTSDB's tables: `python kafka.py TARGET BROKERS TOPIC [options of Beam]`.

Reading is Beam's managed Kafka source, which needs Java when the graph is built. Messages are lines of
InfluxDB. The timestamp of an element is that of its record in Kafka: it becomes the arrival of its points.
"""

from __future__ import annotations

import sys
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms import managed
from apache_beam.transforms.error_handling import ErrorHandler

from timebeam.io import ParsePoints, WritePoints


def records(brokers: str, topic: str) -> beam.PTransform[Any, Any]:
    """Rows with the bytes of each record as their field `payload`."""
    source = {"bootstrap_servers": brokers, "topic": topic, "format": "RAW"}
    return managed.Read(managed.KAFKA, config=source)


def store(rows: Any, target: str, **options: Any) -> None:
    """Stores the points of rows with a field `payload`, and prints what is rejected."""
    with ErrorHandler(beam.Map(print)) as rejected:
        points = rows | ParsePoints("influx").with_error_handler(rejected)
        points | WritePoints(target, "opentsdb", **options).with_error_handler(rejected)


def main(target: str, brokers: str, topic: str, *options: str) -> None:
    """Runs until it is stopped."""
    with beam.Pipeline(options=PipelineOptions([*options, "--streaming"])) as pipeline:
        store(pipeline | records(brokers, topic), target, auto_create_metrics=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
