"""Points and rows of Bigtable in your own Apache Beam pipelines.

    import apache_beam as beam
    from timebeam.io import ParsePoints, WritePoints

    with beam.Pipeline() as pipeline:
        messages = pipeline | beam.io.ReadFromPubSub(topic="projects/my-project/topics/metrics")
        points, unparsed = messages | ParsePoints("influx")
        rejected = points | WritePoints("projects/my-project/instances/metrics", "opentsdb")

docs/reference/beam.md explains windows, rejections and Beam YAML. No other module of the library imports
Beam.
"""

from __future__ import annotations

from timebeam.transforms.beam_io import ParsePoints, ReadPoints, WritePoints
from timebeam.transforms.bigtable.beam_steps import ReadRows, WriteRows
from timebeam.transforms.ingest.point_rows import Point

__all__ = ["ParsePoints", "Point", "ReadPoints", "ReadRows", "WritePoints", "WriteRows"]
