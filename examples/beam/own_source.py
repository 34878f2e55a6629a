"""Readings of your own into OpenTSDB's tables, and back: `python own_source.py TARGET [options of Beam]`.

TARGET is projects/P/instances/I. The tables are those of `timebeam tables create --layout opentsdb`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms.error_handling import ErrorHandler
from apache_beam.transforms.window import FixedWindows, TimestampedValue

from timebeam.io import Point, ReadPoints, WritePoints

NOON = 1_795_521_600  # s since 1970
READINGS = [(NOON + 20 * number, "north", 20.0 + number) for number in range(9)] + [(NOON, "south", None)]


def write(target: str, options: Mapping[str, object], argv: list[str]) -> None:
    """Ten readings in windows of a minute; the one without a value is printed with the reason."""
    with beam.Pipeline(options=PipelineOptions(argv)) as pipeline, ErrorHandler(beam.Map(print)) as rejected:
        readings = pipeline | beam.Create(READINGS)
        points = readings | beam.MapTuple(
            lambda time, room, degrees: TimestampedValue(
                Point("room.temperature", {"room": room}, time * 1000, float_value=degrees), time
            )
        ).with_output_types(Point)
        store = WritePoints(target, "opentsdb", store_options=options, auto_create_metrics=True)
        points | beam.WindowInto(FixedWindows(60)) | store.with_error_handler(rejected)


def read(target: str, options: Mapping[str, object], argv: list[str]) -> None:
    """Prints the mean of each room and minute."""
    with beam.Pipeline(options=PipelineOptions(argv)) as pipeline, ErrorHandler(beam.Map(print)) as rejected:
        times = (NOON * 1000, (NOON + 3600) * 1000)
        source = ReadPoints(target, "opentsdb", *times, store_options=options, as_rows=True)
        points = pipeline | source.with_error_handler(rejected) | beam.WindowInto(FixedWindows(60))
        means = (
            points
            | beam.Map(lambda point: (point.tags["room"], point.float_value))
            | beam.CombinePerKey(beam.combiners.MeanCombineFn())
        )
        means | beam.MapTuple(
            lambda room, mean, window=beam.DoFn.WindowParam: print(room, int(window.start) - NOON, mean)
        )


if __name__ == "__main__":
    write(sys.argv[1], {}, sys.argv[2:])
    read(sys.argv[1], {}, sys.argv[2:])
