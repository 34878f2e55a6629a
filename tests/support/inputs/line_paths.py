"""The fast path of a line format beside its slow one."""

from __future__ import annotations

from collections.abc import Iterator

from timebeam.schema.bits.reasons import RejectedError
from timebeam.schema.core.points import PointBatch
from timebeam.schema.core.rejections import Rejected, Stage
from timebeam.schema.formats.linewise import LineFormat
from timebeam.testing import points_of

ARRIVAL, SOURCE, OFFSET = 1_700_000_000_000, "gs://b/file", 1_000_000


def line_spans(text: bytes) -> Iterator[tuple[int, int]]:
    """The lines that hold more than blanks."""
    at = 0
    for line in text.split(b"\n"):
        if line.strip():
            yield at, at + len(line)
        at += len(line) + 1


def expected(form: LineFormat, text: bytes, spans: Iterator[tuple[int, int]]) -> tuple[object, object]:
    """What the slow path reads from these spans."""
    points, rejected = [], []
    for start, end in spans:
        for record in form.records(text, start, end):
            if isinstance(record.outcome, RejectedError):
                rejected.append(
                    Rejected(
                        text[record.start : record.end],
                        record.outcome.reason,
                        record.outcome.message,
                        Stage.PARSE,
                        SOURCE,
                        OFFSET + record.start,
                        ARRIVAL,
                    )
                )
            else:
                points.append(record.outcome)
    return points_of(PointBatch.of(points, ARRIVAL)), rejected
