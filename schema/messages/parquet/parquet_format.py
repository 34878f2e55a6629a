"""Message format `parquet`: rows of Parquet files, as `timebeam export` writes them or with other columns.

A message is a batch of rows as an Arrow IPC stream, which `batch_bytes` makes, or a whole small Parquet file.
A refusal holds its row as an Arrow IPC stream.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from timebeam.schema.common.encodings import LARGEST
from timebeam.schema.common.option import Option
from timebeam.schema.messages.base import (
    FieldSource,
    Framing,
    Message,
    MessageFormat,
    Parsed,
    RecordFields,
    joined_of,
)
from timebeam.schema.messages.parquet.arrow_stream import read_stream
from timebeam.schema.messages.parquet.columns import KINDS, MAP, TAG, TIME, batch_bytes, open_file, row_bytes
from timebeam.schema.messages.rules import FIRST_MILLISECOND, LAST_MILLISECOND, add_tag
from timebeam.schema.points import (
    Bools,
    Int64s,
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

_MOST_TAGS = 256  # in a map of tags
_MOST_MAP_CELLS = 1 << 25  # rows of a message, times the most tags of one: 8 bytes each
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
            yield Parsed(dataclasses.replace(parsed.batch, origins=origins), refused)

    def parse(self, message: Message) -> Parsed:
        """See `MessageFormat.parse`."""
        none = PointBatch.of([], message.arrival_ms)
        if not message.text:
            return Parsed(none, ())
        try:
            table = _table_of(message.text)
            return self._parsed(table, message)
        except RefusedError as error:
            reason, why = error.reason, error.message
        except (pa.ArrowException, OSError, ValueError, KeyError) as error:
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
        numbers, outcomes = _series(table, fields, resources)
        times_ms, in_ms, has_time = _times(_column(table, fields.timestamp))
        if self._fields is None:
            kinds, bits, payloads, has_value = _exported_values(table)
        else:
            kinds, bits, has_value = _values(_column(table, fields.value))
            payloads = ()
        is_finite = (kinds != Kind.FLOAT) | np.isfinite(bits.view(np.float64))
        is_series = np.array([isinstance(each, Series) for each in outcomes], np.bool_)
        good = has_time & has_value & is_finite & is_series[numbers]
        rows = np.arange(n)
        origins = RowOrigins(b"", rows, rows, message.source, message.offset, table=table)
        rejected, refused_bytes = [], 0
        for row in np.flatnonzero(~good).tolist():
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
        return Parsed(batch if good.all() else batch.take(np.flatnonzero(good)), rejected)


def _table_of(text: bytes) -> pa.Table:
    """The rows of a message.

    Raises:
      RefusedError: they are too many.
      pyarrow.ArrowException, OSError: it is damaged.
    """
    if not text.startswith(b"PAR1"):
        return read_stream(text, MOST_ROWS)
    file = open_file(pa.BufferReader(text), slice(None), 4 * LARGEST)
    if file.metadata.num_rows > MOST_ROWS:
        raise RefusedError(Reason.CORRUPT_MESSAGE, f"a message of more than {MOST_ROWS} rows")
    rows = file.read()
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


def _column(table: pa.Table, name: str) -> pa.Array:
    """A column in one piece.

    Raises:
      RefusedError: there is none.
    """
    if table.column_names.count(name) != 1:
        why = f"the rows have no column {name[:80]!r}: name the columns in --parquet_fields"
        raise RefusedError(Reason.BAD_SYNTAX, why)
    column = table[name].combine_chunks()
    return column.chunk(0) if isinstance(column, pa.ChunkedArray) else column


def _codes(texts: pa.Array) -> tuple[Int64s, list[str | None]]:
    """(int64[n] numbers of strings, the strings); null is a string of its own.

    Raises:
      RefusedError: it is no column of strings, integers or booleans.
    """

    import pyarrow.compute as pc

    kind = texts.type.value_type if pa.types.is_dictionary(texts.type) else texts.type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        if not (pa.types.is_integer(kind) or pa.types.is_boolean(kind)):
            raise RefusedError(Reason.BAD_TAG, f"a metric or tag is a string, not {kind}"[:120])
        texts = texts.cast(pa.string())
    if not pa.types.is_dictionary(texts.type):
        texts = texts.dictionary_encode()
    strings: list[str | None] = texts.dictionary.to_pylist()
    return pc.fill_null(texts.indices, len(strings)).to_numpy(zero_copy_only=False).astype(np.int64), [
        *strings,
        None,
    ]


def _series(
    table: pa.Table, fields: RecordFields, resources: str
) -> tuple[Int64s, list[Series | RefusedError]]:
    """(int64[n] number of the series of each row, the series, or why it is refused).

    Args:
      resources: the column of Heroic's resources; empty if there is none.
    """
    named = [("", fields.metric), *fields.tag]
    texts = [
        (np.zeros(len(table), np.int64), [source.text])
        if source.constant
        else _codes(_column(table, source.text))
        for _, source in named
    ]
    maps = [_map_codes(_column(table, name)) for name in (fields.tags, resources) if name]
    columns = [*(codes for codes, _ in texts), *(column for columns, _ in maps for column in columns)]
    rows, numbers = _distinct(columns, len(table))
    outcomes: list[Series | RefusedError] = []
    for row in rows.tolist():
        metric, *values = (strings[codes[row]] for codes, strings in texts)
        tags = [(key, value) for (key, _), value in zip(fields.tag, values, strict=True) if value is not None]
        in_maps = [[pairs[column[row]] for column in columns if column[row] >= 0] for columns, pairs in maps]
        of_resources = in_maps.pop() if resources else []
        outcomes.append(_one_series(metric, [*tags, *itertools.chain(*in_maps)], of_resources))
    return numbers, outcomes


_Pairs = Sequence[tuple[str | None, str | None]]


def _one_series(metric: str | None, tags: _Pairs, resources: _Pairs) -> Series | RefusedError:
    """The series of a row, or why it is refused."""
    if not metric:
        return RefusedError(Reason.BAD_METRIC, "the row has no metric")
    by_key: tuple[dict[str, str], dict[str, str]] = ({}, {})
    try:
        for pairs, texts in zip((tags, resources), by_key, strict=True):
            for key, value in pairs:
                if not key or value is None:
                    return RefusedError(Reason.BAD_TAG, "a tag of the row has no key or no value")
                add_tag(texts, key, value)
    except RefusedError as error:
        return error
    return Series.of(metric, *by_key)


def _map_codes(tags: pa.Array) -> tuple[list[Int64s], list[tuple[str | None, str | None]]]:
    """(the number of the first, second, … entry of each row, -1 behind the last; the entries by number).

    Raises:
      RefusedError: it is no column of maps of strings, or a row has too many entries.
    """
    if not pa.types.is_map(tags.type):
        raise RefusedError(Reason.BAD_TAG, f"tags are a map of strings, not {tags.type}"[:120])
    offsets = tags.offsets.to_numpy().astype(np.int64)
    sizes = np.where(tags.is_null().to_numpy(zero_copy_only=False), 0, np.diff(offsets))
    most = int(sizes.max(initial=0))
    if most > _MOST_TAGS:
        raise RefusedError(Reason.TOO_MANY_TAGS, f"a row has {most} tags; at most {_MOST_TAGS} are read")
    if most * len(tags) > _MOST_MAP_CELLS:
        why = f"{len(tags):,} rows with up to {most} tags in a message: send fewer rows together"
        raise RefusedError(Reason.TOO_MANY_TAGS, why)
    (keys, key_names), (values, value_names) = _codes(tags.keys), _codes(tags.items)
    codes, entries = np.unique(keys * len(value_names) + values, return_inverse=True)
    pairs = [
        (key_names[code // len(value_names)], value_names[code % len(value_names)]) for code in codes.tolist()
    ]
    columns = []
    for place in range(most):
        column = np.full(len(tags), -1, np.int64)
        has = sizes > place
        column[has] = entries[offsets[:-1][has] + place]
        columns.append(column)
    return columns, pairs


def _distinct(columns: Sequence[Int64s], n: int) -> tuple[Int64s, Int64s]:
    """(a row of each distinct combination, int64[n] number of the combination of each row)."""
    is_new = np.zeros(n, np.bool_)
    is_new[:1] = True
    for column in columns:
        is_new[1:] |= column[1:] != column[:-1]
    starts = np.flatnonzero(is_new)
    numbers = np.zeros(len(starts), np.int64)
    for column in columns:
        of_runs = column[starts] + 1
        joined = numbers * (int(of_runs.max(initial=0)) + 1) + of_runs
        numbers = np.unique(joined, return_inverse=True)[1]
    _, firsts = np.unique(numbers, return_index=True)
    return starts[firsts], numbers[np.cumsum(is_new) - 1]


def _times(times: pa.Array) -> tuple[Int64s, Bools, Bools]:
    """(times in ms, whether each is in ms, whether it can be stored); whole seconds of timestamps are in s.

    Raises:
      RefusedError: it is no column of timestamps or integers.
    """
    has_time = times.is_valid().to_numpy(zero_copy_only=False)
    if pa.types.is_timestamp(times.type):
        times_ms = _integers(times.cast(pa.timestamp("ms", times.type.tz), safe=False).cast(pa.int64()))
        in_ms = times_ms % 1000 != 0
    elif pa.types.is_integer(times.type):
        numbers = _integers(times.cast(pa.int64()))
        in_ms = numbers >= FIRST_MILLISECOND
        times_ms = np.where(in_ms, numbers, np.clip(numbers, 0, FIRST_MILLISECOND) * 1000)
    else:
        raise RefusedError(
            Reason.BAD_TIMESTAMP, f"a time is a timestamp or an integer, not {times.type}"[:120]
        )
    return times_ms, in_ms, has_time & (times_ms > 0) & (times_ms <= LAST_MILLISECOND)


def _integers(numbers: pa.Array) -> Int64s:
    """int64[n], null as 0."""
    whole: Int64s = numbers.fill_null(0).to_numpy(zero_copy_only=False)
    return whole


def _values(values: pa.Array) -> tuple[Any, Int64s, Bools]:
    """(kinds, bits, whether there is a value) of a column of numbers.

    Raises:
      RefusedError: it is no column of numbers.
    """
    kind = values.type
    has_value = values.is_valid().to_numpy(zero_copy_only=False)
    if pa.types.is_integer(kind):
        return np.full(len(values), Kind.INTEGER, np.uint8), _integers(values.cast(pa.int64())), has_value
    if not (pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
        raise RefusedError(Reason.BAD_NUMBER, f"a value is a number, not {kind}"[:120])
    doubles = values.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False)
    return np.full(len(values), Kind.FLOAT, np.uint8), doubles.view(np.int64), has_value


def _exported_values(table: pa.Table) -> tuple[Any, Int64s, Sequence[bytes], Bools]:
    """(kinds, bits, payloads, whether there is a value) of the columns of `timebeam export`."""
    codes, names = _codes(_column(table, "kind"))
    kind_of = np.array([KINDS.index(name) if name in KINDS else len(KINDS) for name in names])
    kinds = kind_of[codes].astype(np.uint8)
    _, integers, is_integer = _values(_column(table, "int_value").cast(pa.int64()))
    _, doubles, is_double = _values(_column(table, "double_value"))
    bits = np.where(kinds == Kind.FLOAT, doubles, integers)
    has_value = np.where(kinds == Kind.FLOAT, is_double, is_integer)
    payloads: list[bytes] = []
    is_payload = kinds >= Kind.TEXT
    if is_payload.any():
        texts = _column(table, "bytes_value")
        has_value = np.where(
            is_payload, texts.is_valid().to_numpy(zero_copy_only=False) & (kinds < len(KINDS)), has_value
        )
        chosen = texts.filter(pa.array(is_payload))
        if pa.types.is_dictionary(chosen.type):
            values = [*chosen.dictionary.to_pylist(), b""]
            payloads = [values[code] for code in chosen.indices.fill_null(len(values) - 1).to_pylist()]
        else:
            payloads = chosen.fill_null(b"").to_pylist()
        bits = bits.copy()
        bits[is_payload] = np.arange(len(payloads))
    return kinds, bits, payloads, has_value
