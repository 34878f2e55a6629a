"""Points as rows with a schema, at the edge of a pipeline: gathered into batches, and made of batches.

Without postponed annotations: Beam takes the schema of `Point` from the types themselves.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Optional

import apache_beam as beam
import numpy as np
from apache_beam.coders import RowCoder, registry
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import Timestamp
from apache_beam.utils.windowed_value import WindowedValue

from timebeam.schema.bits.reasons import Reason, RejectedError
from timebeam.schema.core.points import PointBatch, Series
from timebeam.schema.core.rejections import Rejected, Stage
from timebeam.transforms.flow.in_windows import GatherInWindowsFn
from timebeam.transforms.flow.steps import RejectedOutput, reject

GATHERED_POINTS = 50_000
"""So many `Point` rows of a bundle become one batch."""


class Point(NamedTuple):
    """One point, as a row with a schema: for small inputs, SQL and Beam YAML; `WritePoints` gathers them.

    >>> Point("sys.load", {"host": "web1"}, 1_356_998_400_000, float_value=0.5).tags
    {'host': 'web1'}

    Attributes:
      metric: its name.
      tags: tag keys and values.
      time_ms: ms since 1970. A whole second is stored as one of a producer that sends seconds.
      int_value, float_value: the value, one of them; the kind is kept.
    """

    metric: str
    tags: Mapping[str, str]
    time_ms: int
    int_value: Optional[int] = None  # noqa: UP045 - of `int | None` Beam makes a field of any type
    float_value: Optional[float] = None  # noqa: UP045


registry.register_coder(Point, RowCoder)


_Record = tuple[Series, int, bool, int | float, int]
"""(series, time in ms, given in ms?, value, arrival in ms)."""


class BatchPointsFn(GatherInWindowsFn[_Record]):
    """`Point`, or rows with its fields, in; `PointBatch` out, and rejected rows to `REJECTED`.

    A `PointBatch` passes.
    """

    most = most_weight = GATHERED_POINTS

    def made(self, items: list[_Record]) -> PointBatch:
        batch = PointBatch.of([item[:4] for item in items], 0)
        arrivals_ms = np.array([item[4] for item in items], np.int64)
        return dataclasses.replace(batch, arrivals_ms=arrivals_ms)

    def process(
        self,
        element: Any,
        windows: WindowedValue = beam.DoFn.WindowedValueParam,  # type: ignore[assignment]
    ) -> Iterator[PointBatch | WindowedValue | RejectedOutput]:
        if isinstance(element, PointBatch):
            yield element
            return
        arrival_ms = self.arrival_ms(windows)
        try:
            record = record_of(element)
        except RejectedError as error:
            payload = repr(element)[:_SHOWN].encode("utf-8", "backslashreplace")
            rejected = Rejected(payload, error.reason, error.message, Stage.PARSE, arrival_ms=arrival_ms)
            yield reject(rejected)
        else:
            yield from self.add((*record, arrival_ms), 1, windows)


_SHOWN = 10_000
_LAST_TIME_MS = (1 << 63) - 1


def record_of(row: Any) -> tuple[Series, int, bool, int | float]:
    """(series, time in ms, given in ms?, value) of a `Point`, or of a row with its fields.

    Raises:
      RejectedError: a field is missing, of another type, or out of range.
    """
    fields: list[Any] = [getattr(row, name, None) for name in Point._fields]
    metric, tags, time_ms, integer, number = fields
    if not isinstance(metric, str):
        raise RejectedError(Reason.BAD_METRIC, f"metric {metric!r} is no text")
    pairs = tags._asdict() if hasattr(tags, "_asdict") else tags
    if not isinstance(pairs, Mapping) or not all(
        isinstance(text, str) for tag in pairs.items() for text in tag
    ):
        raise RejectedError(Reason.BAD_TAG, f"tags {tags!r}: give a mapping of texts to texts")
    if not _is_integer(time_ms) or not 0 <= time_ms <= _LAST_TIME_MS:
        raise RejectedError(Reason.BAD_TIMESTAMP, f"time_ms {time_ms!r}: give ms since 1970")
    if (integer is None) == (number is None):
        raise RejectedError(Reason.EMPTY_VALUE, "give int_value or float_value, one of them")
    if integer is not None and (not _is_integer(integer) or not -(1 << 63) <= integer < 1 << 63):
        raise RejectedError(Reason.NUMBER_OUT_OF_RANGE, f"int_value {integer!r} is not a 64-bit integer")
    if number is not None and not (isinstance(number, float) or _is_integer(number)):
        raise RejectedError(Reason.BAD_NUMBER, f"float_value {number!r} is no number")
    try:
        point = int(integer) if integer is not None else float(number)
    except OverflowError as error:
        raise RejectedError(Reason.NUMBER_OUT_OF_RANGE, f"float_value: {error}") from error
    return Series.of(metric, dict(pairs)), int(time_ms), time_ms % 1000 != 0, point


def _is_integer(number: Any) -> bool:
    return isinstance(number, (int, np.integer)) and not isinstance(number, bool)


def rows_of(batch: PointBatch) -> Iterator[Any]:
    """The points of a batch as `Point`, each at its own time; other values than numbers are rejected."""
    for number, (series, time_ms, point) in enumerate(batch.points()):
        if isinstance(point, (str, bytes)):
            yield from map(reject, batch.reject(np.array([number]), _no_number, Stage.READ))
            continue
        row = Point(series.metric, dict(series.tags), time_ms)
        row = row._replace(int_value=point) if isinstance(point, int) else row._replace(float_value=point)
        yield TimestampedValue(row, Timestamp(micros=time_ms * 1000))


def _no_number(point: int) -> RejectedError:
    return RejectedError(Reason.VALUE_NOT_STORABLE, "a row holds numbers only: read batches instead")
