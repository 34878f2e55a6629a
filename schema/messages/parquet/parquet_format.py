"""Message format `parquet`: rows of Parquet files, as `timebeam export` writes them or with other columns.

A message is a batch of rows as an Arrow IPC stream, which `batch_bytes` makes, or a whole small Parquet file.
A refusal holds its row as an Arrow IPC stream.
"""

from __future__ import annotations

import dataclasses
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from timebeam.schema.common.encodings import LARGEST
from timebeam.schema.common.option import Option
from timebeam.schema.messages.base import (
    NAN_OPTION,
    NOT_FINITE,
    FieldSource,
    Framing,
    Message,
    MessageFormat,
    Parsed,
    RecordFields,
    joined_of,
)
from timebeam.schema.messages.parquet.arrow_stream import read_stream
from timebeam.schema.messages.parquet.columns import MAP, TAG, TIME, batch_bytes, row_bytes
from timebeam.schema.messages.parquet.footer import ENCRYPTED_MAGIC, MAGIC, read_footer
from timebeam.schema.messages.parquet.read_columns import (
    column_of,
    exported_values,
    series_of_rows,
    times_of,
    values_of,
)
from timebeam.schema.messages.parquet.row_groups import RowGroups
from timebeam.schema.points import (
    Kind,
    Origins,
    PointBatch,
    Reason,
    RefusedError,
    Rejected,
    Series,
    Stage,
)

BATCH_ROWS = 1 << 16
MOST_ROWS = 1 << 21
"""Rows of a message."""

_MOST_REFUSED = 4 * LARGEST  # bytes of the refused rows of a message; with more it is refused as a whole
_QUOTED = re.compile(rb"%([0-9A-Fa-f]{2})")
_METRIC_FOLDER = re.compile(r"/metric=([^/]+)/")


@dataclasses.dataclass(frozen=True, slots=True)
class RowOrigins(Origins):
    """Rows of a table: `starts` are their numbers, and `offset` the number of the first row in its file."""

    table: pa.Table = None

    def refuse(self, point: int, reason: Reason, message: str, stage: Stage) -> Rejected:
        """See `Origins.refuse`; the payload is the row."""
        row = int(self.starts[point])
        payload = batch_bytes(
            _without_dictionaries(self.table.slice(row, 1)).combine_chunks().to_batches()[0]
        )
        rejected = Rejected(payload, reason, message, stage, self.source, self.offset + row)
        return self.joined.addressed(rejected) if self.joined else rejected


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


class _Example:
    """A point, made when it is asked for: pyarrow imports pandas to make arrays."""

    def __get__(self, message_format: object, format_class: type) -> bytes:
        """The rows of a message with one point."""
        columns = {"metric": ["sys.cpu"], "tag_host": ["web01"], "time": pa.array([1_356_998_400_000], TIME)}
        values = {"kind": ["double"], "int_value": pa.array([None], pa.int64()), "double_value": [42.5]}
        return batch_bytes(pa.record_batch(columns | values))


class Parquet(MessageFormat):
    """Rows with the columns of `timebeam export`, or with those that `parquet_fields` names."""

    name = "parquet"
    framing = Framing.PARQUET
    example = _Example()
    declared_options = (
        Option(
            "parquet_fields",
            "parquet: the columns of files that timebeam did not write: metric=COLUMN,timestamp=COLUMN,"
            "value=COLUMN,tags=COLUMN; also tag:KEY=COLUMN for one tag, and metric:=TEXT, tag:KEY:=TEXT for "
            "the same text in all rows",
            regex=r"[^=,]+=[^,]+(,[^=,]+=[^,]+)*",
            example="metric=name,timestamp=at,value=reading,tag:host=machine",
        ),
        NAN_OPTION,
    )

    def __init__(self, fields: RecordFields | None = None) -> None:
        """`fields`: None for the columns of `timebeam export`."""
        self._fields = fields

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Parquet:
        """See `MessageFormat.from_options`: `parquet_fields`."""
        text = options.get("parquet_fields")
        return cls(RecordFields.of(text, "parquet_fields") if text else None)

    def parse_all(self, messages: Sequence[Message]) -> Iterator[Parsed]:
        """See `MessageFormat.parse_all`; a message is large, so each is a batch."""
        for message in messages:
            parsed = self.parse(message)
            refused = [
                dataclasses.replace(each, arrival_ms=message.arrival_ms, envelope=message.envelope)
                for each in parsed.rejected
            ]
            origins = parsed.batch.origins
            if origins is not None:
                origins = dataclasses.replace(origins, joined=joined_of([message]))
            batch = dataclasses.replace(parsed.batch, origins=origins)
            yield dataclasses.replace(parsed, batch=batch, rejected=refused)

    def _parse(self, message: Message) -> Parsed:
        none = PointBatch.of([], message.arrival_ms)
        if not message.text:
            return Parsed(none, ())
        try:
            table = _table_of(message.text)
            return self._parsed(table, message)
        except RefusedError as error:
            reason, why = error.reason, error.message
        except (pa.ArrowException, OSError, ValueError, LookupError) as error:
            reason, why = Reason.CORRUPT_MESSAGE, f"not rows of Parquet: {error}"[:180]
        rejected = Rejected(message.text, reason, why, Stage.PARSE, message.source, message.offset)
        return Parsed(none, [rejected])

    def _parsed(self, table: pa.Table, message: Message) -> Parsed:
        """The points of the rows, and a refusal for each other row.

        Raises:
          RefusedError: a column is missing, or of a type that holds no such values.
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
        origins = RowOrigins(b"", rows, rows, message.source, message.offset, table=table)
        rejected, refused_bytes = [], 0
        for row in np.flatnonzero(~good & ~not_finite if self.skips_nan else ~good).tolist():
            outcome = outcomes[numbers[row]]
            if isinstance(outcome, RefusedError):
                error = outcome
            elif not has_time[row]:
                error = RefusedError(Reason.BAD_TIMESTAMP, "no time from 1970-01-01 to 2106-02-07")
            elif not has_value[row]:
                error = RefusedError(Reason.EMPTY_VALUE, "the row has no value")
            else:
                error = RefusedError(Reason.BAD_NUMBER, "value is NaN or Infinite")
            rejected.append(origins.refuse(row, error.reason, error.message, Stage.PARSE))
            refused_bytes += len(rejected[-1].payload)  # each row has strings of its own, unlike the message
            if refused_bytes > _MOST_REFUSED:
                why = f"rows of more than {_MOST_REFUSED:,} bytes are refused, the last for: {error.message}"
                raise RefusedError(error.reason, why[:180])
        ranks = np.cumsum(is_series) - 1
        batch = PointBatch(
            [each for each in outcomes if isinstance(each, Series)],
            ranks[numbers].astype(np.int32),
            times_ms,
            in_ms,
            kinds,
            bits,
            np.full(n, message.arrival_ms, np.int64),
            origins,
            payloads,
        )
        skipped = {NOT_FINITE: int(np.count_nonzero(not_finite))} if self.skips_nan else {}
        return Parsed(batch if good.all() else batch.take(np.flatnonzero(good)), rejected, skipped=skipped)


def _table_of(text: bytes) -> pa.Table:
    """The rows of a message.

    Raises:
      RefusedError: they are too many.
      pyarrow.ArrowException, OSError: it is damaged.
    """
    if not text.startswith((MAGIC, ENCRYPTED_MAGIC)):
        return read_stream(text, MOST_ROWS)
    source = io.BytesIO(text)
    footer = read_footer(source)
    if sum(footer.group_rows) > MOST_ROWS:
        raise RefusedError(Reason.CORRUPT_MESSAGE, f"a message of more than {MOST_ROWS} rows")
    rows = RowGroups(source, footer, range(len(footer.group_rows)), 4 * LARGEST).table()
    if row_bytes(rows).sum() > LARGEST:
        raise RefusedError(Reason.CORRUPT_MESSAGE, f"values of more than {LARGEST} bytes in a message")
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
