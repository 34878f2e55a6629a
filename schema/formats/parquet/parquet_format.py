"""Message format `parquet`: rows of Parquet files, as `timebeam export` writes them or with other columns.

A message is a batch of rows as an Arrow IPC stream, which `batch_bytes` makes, or a whole small Parquet file.
A rejection holds the rows that one reason rejects as an Arrow IPC stream, or the message and their numbers.
"""

from __future__ import annotations

import dataclasses
import io
import re
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from timebeam.schema.bits.arrays import Int64s, Kind
from timebeam.schema.bits.compression import LARGEST
from timebeam.schema.bits.reasons import Reason, RejectedError
from timebeam.schema.core.points import PointBatch, Series
from timebeam.schema.core.rejections import Origins, Records, Rejected, Stage, grouped, is_listed, records_of
from timebeam.schema.formats.base import (
    NOT_FINITE,
    Framing,
    Message,
    MessageFormat,
    Parsed,
    joined_of,
    rejection,
)
from timebeam.schema.formats.options import DEFAULTS, FieldSource, FormatOptions, RecordFields
from timebeam.schema.formats.parquet.footer import ENCRYPTED_MAGIC, MAGIC, read_footer
from timebeam.schema.formats.parquet.parquet_columns import MAP, TAG, TIME, batch_bytes, row_bytes
from timebeam.schema.formats.parquet.read_columns import (
    column_of,
    exported_values,
    read_stream,
    series_of_rows,
    times_of,
    values_of,
)
from timebeam.schema.formats.parquet.row_groups import RowGroups

MOST_ROWS = 1 << 21
"""Rows of a message."""

_SHORT_BYTES = 1 << 14  # of rejected rows, which are their payload even if the message is shorter
_QUOTED = re.compile(rb"%([0-9A-Fa-f]{2})")
_METRIC_FOLDER = re.compile(r"/metric=([^/]+)/")


@dataclasses.dataclass(frozen=True, slots=True)
class RowOrigins(Origins):
    """Rows of a table: `starts` are their numbers, and `offset` the number of the first row in its file.

    Attributes:
      message: the message with the rows.
    """

    table: pa.Table = None
    message: bytes = b""

    def reject(
        self, points: Int64s, why: Callable[[int], RejectedError], stage: Stage, arrivals_ms: Int64s
    ) -> list[Rejected]:
        """See `Origins.reject`: one for each reason. The payload is its rows, or the shorter message."""
        rows, rejections = self.starts[points], []
        none = np.zeros(len(points), np.int64)
        for _, _, error, group in grouped(none, none, None, points, why):
            chosen = rows[group]
            records: Records = ()
            offset, payload = self.offset + int(chosen[0]), self._payload(chosen)
            if payload is None:
                offset, payload = self.offset, self.message
                records = records_of(chosen, chosen + 1, (0, len(self.table)))
            rejected = Rejected(
                payload,
                error.reason,
                error.message,
                stage,
                self.source,
                offset,
                int(arrivals_ms[points[group[0]]]),
                self.joined.envelopes[0] if self.joined else None,
                len(group),
                records,
            )
            rejections.append(rejected)
        return rejections

    def _payload(self, rows: Int64s) -> bytes | None:
        """Some rows without the strings of others; None if the whole message is shorter."""
        plain_bytes = int(_plain_bytes(self.table, rows))
        if plain_bytes > max(len(self.message), _SHORT_BYTES):
            return None
        chosen = _without_dictionaries(self.table.take(pa.array(rows)))
        return batch_bytes(chosen.combine_chunks().to_batches()[0])


def _without_dictionaries(rows: pa.Table) -> pa.Table:
    """Rows without the strings of other rows."""
    return rows.cast(
        pa.schema(
            [
                pa.field(field.name, field.type.value_type)
                if pa.types.is_dictionary(field.type)
                else pa.field(field.name, pa.map_(pa.string(), pa.string()))
                if field.type == MAP
                else field
                for field in rows.schema
            ]
        )
    )


def _plain_bytes(table: pa.Table, rows: Int64s) -> int:
    """About what some rows of a table take without dictionaries."""
    import pyarrow.compute as pc

    size = 0
    indices = pa.array(rows)
    for column in table.columns:
        size += 8 * len(rows)
        for chosen in column.take(indices).chunks:
            for texts in (chosen.keys, chosen.items) if pa.types.is_map(chosen.type) else (chosen,):
                if pa.types.is_dictionary(texts.type):
                    lengths = pc.binary_length(texts.dictionary).take(texts.indices)
                    size += 8 * len(texts) + (pc.sum(lengths.cast(pa.int64())).as_py() or 0)
                elif texts.type in (pa.string(), pa.binary(), pa.large_string(), pa.large_binary()):
                    size += pc.sum(pc.binary_length(texts).cast(pa.int64())).as_py() or 0
    return size


class _Example:
    """A point, made when it is asked for: pyarrow imports pandas to make arrays."""

    def __get__(self, message_format: object, format_class: type) -> bytes:
        """The rows of a message with one point."""
        columns = {"metric": ["sys.cpu"], "tag_host": ["web01"], "time": pa.array([1_356_998_400_000], TIME)}
        values = {"kind": ["double"], "int_value": pa.array([None], pa.int64()), "double_value": [42.5]}
        return batch_bytes(pa.record_batch(columns | values))


class Parquet(MessageFormat):
    """Rows with the columns of `timebeam export`, or with those that `parquet_fields` names.

    >>> columns = {"name": ["sys.cpu"], "at": [1356998400000], "reading": [42.5], "machine": ["web01"]}
    >>> rows = batch_bytes(pa.RecordBatch.from_pydict(columns))
    >>> options = FormatOptions(parquet_fields="metric=name,timestamp=at,value=reading,tag:host=machine")
    >>> batch = Parquet(options).parse(Message(rows, arrival_ms=0)).batch
    >>> str(batch.series[0]), batch.times_ms.tolist(), batch.value(0)
    ('sys.cpu{host=web01}', [1356998400000], 42.5)
    """

    name = "parquet"
    framing = Framing.PARQUET
    example = _Example()

    def __init__(self, options: FormatOptions = DEFAULTS) -> None:
        super().__init__(options)
        text = options.parquet_fields  # none for the columns of `timebeam export`
        self._fields = RecordFields.of(text, "parquet_fields") if text else None

    def parse_all(self, messages: Sequence[Message]) -> Iterator[Parsed]:
        """See `MessageFormat.parse_all`; a message is large, so each is a batch."""
        return map(self.parse, messages)

    def _parse(self, message: Message) -> Parsed:
        none = PointBatch.of([], message.arrival_ms)
        if not message.text:
            return Parsed(none, ())
        try:
            table = _table_of(message.text)
            return self._parsed(table, message)
        except RejectedError as error:
            reason, why = error.reason, error.message
        except (pa.ArrowException, OSError, ValueError, LookupError) as error:
            reason, why = Reason.CORRUPT_MESSAGE, f"not rows of Parquet: {error}"[:180]
        rejected = rejection(message, 0, len(message.text), reason, why)
        return Parsed(none, [dataclasses.replace(rejected, records=message.records)])

    def _parsed(self, table: pa.Table, message: Message) -> Parsed:
        """The points of the rows, and a rejection for each other row.

        Raises:
          RejectedError: a column is missing, or of a type that holds no such values.
        """
        n = len(table)
        fields = self._fields or _exported_fields(table.column_names, message.source)
        resources = "resources" if self._fields is None and "resources" in table.column_names else ""
        numbers, outcomes = series_of_rows(table, fields, resources)
        times_ms, in_ms, has_time = times_of(column_of(table, fields.timestamp))
        if self._fields is None:
            kinds, bits, payloads, has_value = exported_values(table)
        else:
            kinds, bits, has_value = values_of(column_of(table, fields.value))
            payloads = ()
        not_finite = has_value & (kinds == Kind.FLOAT) & ~np.isfinite(bits.view(np.float64))
        is_series = np.array([isinstance(each, Series) for each in outcomes], np.bool_)
        good = has_time & has_value & ~not_finite & is_series[numbers]
        rows = np.arange(n)
        place = message.source, message.offset, joined_of([message])
        origins = RowOrigins(b"", rows, rows, *place, table=table, message=message.text)
        arrivals_ms = np.full(n, message.arrival_ms, np.int64)

        def why(row: int) -> RejectedError:
            outcome = outcomes[numbers[row]]
            if isinstance(outcome, RejectedError):
                return outcome
            if not has_time[row]:
                return RejectedError(Reason.BAD_TIMESTAMP, "no time from 1970-01-01 to 2106-02-07")
            if not has_value[row]:
                return RejectedError(Reason.EMPTY_VALUE, "the row has no value")
            return RejectedError(Reason.BAD_NUMBER, "value is NaN or Infinite")

        is_listed_row = is_listed(rows, message.records) if message.records else np.ones(n, np.bool_)
        not_finite &= is_listed_row
        is_rejected = ~good & is_listed_row & ~(not_finite if self.skips_nan else np.zeros(n, np.bool_))
        rejected = origins.reject(np.flatnonzero(is_rejected), why, Stage.PARSE, arrivals_ms)
        good &= is_listed_row
        ranks = np.cumsum(is_series) - 1
        batch = PointBatch(
            [each for each in outcomes if isinstance(each, Series)],
            ranks[numbers].astype(np.int32),
            times_ms,
            in_ms,
            kinds,
            bits,
            arrivals_ms,
            origins,
            payloads,
        )
        skipped = {NOT_FINITE: int(np.count_nonzero(not_finite))} if self.skips_nan else {}
        return Parsed(batch if good.all() else batch.take(np.flatnonzero(good)), rejected, skipped=skipped)


def _table_of(text: bytes) -> pa.Table:
    """The rows of a message.

    Raises:
      RejectedError: they are too many.
      pyarrow.ArrowException, OSError: it is corrupt.
    """
    if not text.startswith((MAGIC, ENCRYPTED_MAGIC)):
        return read_stream(text, MOST_ROWS)
    source = io.BytesIO(text)
    footer = read_footer(source)
    if sum(footer.group_rows) > MOST_ROWS:
        raise RejectedError(Reason.CORRUPT_MESSAGE, f"a message of more than {MOST_ROWS} rows")
    rows = RowGroups(source, footer, range(len(footer.group_rows)), 4 * LARGEST).table()
    if row_bytes(rows).sum() > LARGEST:
        raise RejectedError(Reason.CORRUPT_MESSAGE, f"values of more than {LARGEST} bytes in a message")
    return rows


def _exported_fields(names: Sequence[str], source: str) -> RecordFields:
    """The columns of `timebeam export`; the metric is in the path if the rows have no column of it."""
    folder = _METRIC_FOLDER.search(source)
    metric = FieldSource("metric", constant=False)
    if "metric" not in names and folder:
        metric = FieldSource(_unquoted(folder[1]), constant=True)
    tags = [
        (name.removeprefix(TAG), FieldSource(name, constant=False)) for name in names if name.startswith(TAG)
    ]
    return RecordFields(metric, "time", "", "tags" if "tags" in names else "", tuple(tags))


def _unquoted(text: str) -> str:
    """A name out of the name of a folder, in which %2F is a slash."""
    raw = _QUOTED.sub(lambda match: bytes.fromhex(match[1].decode()), text.encode())
    return raw.decode(errors="replace")
