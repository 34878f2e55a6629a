"""Records of named fields in columns: what declared tables are filled from.

A value is kept as the text that was received, so that 600.60 keeps its zero; what is absent is null.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from timebeam.schema.bits.arrays import Bools, Int64s, Kind
from timebeam.schema.bits.reasons import Reason, RefusedError
from timebeam.schema.core.points import PointBatch, Series
from timebeam.schema.core.rejections import Origins, Rejected, Stage
from timebeam.schema.stores.declared.model import Declaration

METRIC, TIMESTAMP, VALUE = "metric", "timestamp", "value"
"""The fields of a point beside its tags."""

_WHOLE = r"^(0|-?[1-9][0-9]{0,18})$"


@dataclasses.dataclass(frozen=True, slots=True)
class RecordBatch:
    """n records in columns.

    Attributes:
      fields: for each field name string[n], the text of the value, or int64[n]; null where absent.
      arrivals_ms: int64[n], when the record reached us.
      origins: where the records are in their input, while that is in memory.
      quoted: bool[n] for fields that hold other values than texts: which of them are texts (a JSON
        string, say). Without an entry all are; of int64 fields none is.
    """

    fields: Mapping[str, pa.Array]
    arrivals_ms: Int64s
    origins: Origins | None = None
    quoted: Mapping[str, Bools] = dataclasses.field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.arrivals_ms)

    def texts(self, name: str) -> pa.Array:
        """string[n]: the text of a field."""
        column = self.fields.get(name)
        if column is None:
            return pa.nulls(len(self), pa.string())
        return column.cast(pa.string()) if pa.types.is_integer(column.type) else column

    def present(self, name: str) -> Bools:
        """bool[n]: which records have a field."""
        column = self.fields.get(name)
        if column is None:
            return np.zeros(len(self), np.bool_)
        return column.is_valid().to_numpy(zero_copy_only=False)

    def are_texts(self, name: str) -> Bools:
        """bool[n]: which values of a field are texts, not numbers, booleans, arrays or objects."""
        quoted = self.quoted.get(name)
        if quoted is not None:
            return quoted
        column = self.fields.get(name)
        return np.full(len(self), column is None or not pa.types.is_integer(column.type))

    def integers(self, name: str) -> tuple[Int64s, Bools]:
        """(int64[n], bool[n]): a field as whole numbers, and which of its values are any."""

        import pyarrow.compute as pc

        column = self.fields.get(name)
        if column is None:
            return np.zeros(len(self), np.int64), np.zeros(len(self), np.bool_)
        if not pa.types.is_integer(column.type):
            good = pc.fill_null(pc.match_substring_regex(column, _WHOLE), False)
            column = pc.if_else(good, column, None)
            try:
                column = column.cast(pa.int64())
            except pa.ArrowInvalid:  # 19 digits beyond 64 bits
                column = pa.array([_int64(text) for text in column.to_pylist()], pa.int64())
        good = column.is_valid().to_numpy(zero_copy_only=False)
        return column.fill_null(0).to_numpy(), good

    def take(self, records: Int64s) -> RecordBatch:
        """A batch of the records at these indices."""
        indices = pa.array(records)
        return RecordBatch(
            {name: values.take(indices) for name, values in self.fields.items()},
            self.arrivals_ms[records],
            self.origins.take(records) if self.origins else None,
            {name: quoted[records] for name, quoted in self.quoted.items()},
        )

    def payload(self, record: int) -> bytes:
        """The original bytes of a record; without origins its fields as JSON."""
        if self.origins:
            return self.origins.text[self.origins.starts[record] : self.origins.ends[record]]
        values = {name: values[record].as_py() for name, values in self.fields.items()}
        present = {name: value for name, value in values.items() if value is not None}
        return json.dumps(present, ensure_ascii=False).encode()

    def refuse(self, record: int, reason: Reason, message: str) -> Rejected:
        """The refusal of one record by a layout."""
        if self.origins:
            why, number = RefusedError(reason, message), np.array([record])
            (rejected,) = self.origins.refuse(number, lambda _: why, Stage.ENCODE, self.arrivals_ms)
            return rejected
        arrival_ms = int(self.arrivals_ms[record])
        return Rejected(self.payload(record), reason, message, Stage.ENCODE, arrival_ms=arrival_ms)


def of_points(declaration: Declaration, batch: PointBatch) -> tuple[RecordBatch, list[Rejected]]:
    """The records of points: fields `metric`, `timestamp` (ms), `value`, and each tag key by its name.

    Refused are points of series that a table cannot tell from others, since the metric or a tag
    stands neither in its key nor in a qualifier (unless it says allow_overwrite), and opaque values.
    """
    reasons = [_refuse_series(declaration, series) for series in batch.series]
    bad_series = np.array([reason is not None for reason in reasons], np.bool_)
    bad = batch.kinds >= Kind.OPAQUE
    if bad_series.any():
        bad |= bad_series[batch.index]

    def why(point: int) -> RefusedError:
        message = reasons[batch.index[point]]
        if message:
            return RefusedError(Reason.SERIES_NOT_STORABLE, message)
        return RefusedError(Reason.VALUE_NOT_STORABLE, "bytes and histograms have no text to store")

    rejected = batch.refuse(np.flatnonzero(bad), why, Stage.ENCODE)
    if rejected:
        batch = batch.take(np.flatnonzero(~bad))
    index = pa.array(batch.index)
    series = list(batch.series)
    fields: dict[str, pa.Array] = {
        METRIC: pa.array([each.metric for each in series], pa.string()).take(index),
        TIMESTAMP: pa.array(batch.times_ms),
        VALUE: _values(batch),
    }
    tags = [dict(each.tags) for each in series]
    for key in sorted({key for each in tags for key in each} - fields.keys()):
        fields[key] = pa.array([each.get(key) for each in tags], pa.string()).take(index)
    quoted = {VALUE: batch.kinds == Kind.TEXT}
    return RecordBatch(fields, batch.arrivals_ms, batch.origins, quoted), rejected


def _values(batch: PointBatch) -> pa.Array:
    """string[n]: integers in digits, decimals in the fewest digits that tell them, texts as they are."""
    if (batch.kinds == Kind.INTEGER).all():
        return pa.array(batch.bits)
    floats = batch.bits.view(np.float64).tolist()
    texts = [
        repr(number)
        if kind == Kind.FLOAT
        else str(integer)
        if kind == Kind.INTEGER
        else batch.payloads[integer].decode()
        for kind, number, integer in zip(batch.kinds.tolist(), floats, batch.bits.tolist(), strict=True)
    ]
    return pa.array(texts, pa.string())


def _refuse_series(declaration: Declaration, series: Series) -> str | None:
    """Why the points of a series cannot be records, or None."""
    keys = {key for key, _ in series.tags}
    if series.resources:
        return "resources have no place in declared tables"
    if keys & {METRIC, TIMESTAMP, VALUE}:
        return f"a tag must not be called {METRIC}, {TIMESTAMP} or {VALUE}: these are fields of every point"
    for layout in declaration.layouts:
        if layout.allow_overwrite or (layout.when and layout.when not in keys | {METRIC, TIMESTAMP, VALUE}):
            continue
        lost = sorted((keys | {METRIC}) - layout.stored)
        if lost:
            return (
                f"{lost[0]} is neither in the key nor in a qualifier of {layout.table}, so that points "
                "of two series would overwrite each other: add it, or declare allow_overwrite = true"
            )
    return None


def _int64(text: str | None) -> int | None:
    number = int(text) if text is not None else None
    return number if number is not None and -(1 << 63) <= number < 1 << 63 else None
