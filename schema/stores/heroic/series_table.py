"""The series table, which replaces Heroic's metadata in Elasticsearch (docs/spec/heroic.md §6).

| row key | columns of family `series` | for |
|---|---|---|
| `m` NUL metric | `metric` | names of metrics |
| `s` NUL metric NUL id | `series`: JSON as in POST /write; `first`, `last`: bases in ms | a metric's series |
| `t` NUL metric NUL tag key NUL tag value NUL id | `tag` | series by a tag, or the beginning of its value |

An id is BLAKE2b-128 of the series' key as Heroic writes it. In names, NUL is `01 01` and 01 is `01 02`, which
keeps their order. All cells are functions of series and base: the cell timestamp of `last` is the number of
its period (1 for 1970), and that of `first` is 2^31 minus that number. Garbage collection keeps one version,
so the last and the first base stay, whatever the order of the writes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence

from timebeam.schema.bits.lru_cache import batched
from timebeam.schema.core.points import Series
from timebeam.schema.core.rows import Cell, Row
from timebeam.schema.core.selection import Reader, Scan, Selection, UnknownNameError
from timebeam.schema.stores.heroic.keys import PERIOD_MS, sorted_pairs
from timebeam.schema.stores.heroic.wire_key import WireKeys

FAMILY = "series"
ID_BYTES = 16
METRIC, SERIES, TAG = b"m", b"s", b"t"

_NUL = b"\x00"
_ALWAYS = 1  # cell timestamp in ms of what never changes
_FIRST = 1 << 31
_ROWS_AT_ONCE = 1000
_WIRE = WireKeys()


@dataclasses.dataclass(frozen=True, slots=True)
class SeriesEntry:
    """A series in the table, and the bases of its first and last row, in ms."""

    series: Series
    first_ms: int
    last_ms: int


def series_id(series: Series) -> bytes:
    """The 16 bytes that identify a series."""
    key = _WIRE.series_key(series)
    return hashlib.blake2b(key.head + key.tail, digest_size=ID_BYTES).digest()


def row_key(kind: bytes, *names: str) -> bytes:
    """A key of the table or, without the id at its end, a prefix of keys."""
    return _NUL.join([kind, *map(_escaped, names)])


def series_row(series: Series) -> bytes:
    """The key of the row of a series."""
    return row_key(SERIES, series.metric) + _NUL + series_id(series)


def index_rows(table: str, series: Series, base_ms: int) -> list[Row]:
    r"""The rows that the table needs for a series with points in the data row of this base.

    >>> series = Series.of("cpu", {"host": "a"})
    >>> for row in index_rows("series", series, 1297080123392):
    ...     print(row.key.removesuffix(series_id(series)), [cell.qualifier for cell in row.cells])
    b'm\x00cpu' [b'metric']
    b's\x00cpu\x00' [b'first', b'last', b'series']
    b't\x00cpu\x00host\x00a\x00' [b'tag']
    """
    period = base_ms // PERIOD_MS
    base = b"%d" % base_ms
    cells = [
        Cell(FAMILY, b"first", _FIRST - period, base),
        Cell(FAMILY, b"last", period + 1, base),
        Cell(FAMILY, b"series", _ALWAYS, _document(series)),
    ]
    return [
        Row(table, row_key(METRIC, series.metric), [Cell(FAMILY, b"metric", _ALWAYS, b"")]),
        Row(table, series_row(series), cells),
        *(
            Row(
                table,
                row_key(TAG, series.metric, key, value) + _NUL + series_id(series),
                [Cell(FAMILY, b"tag", _ALWAYS, b"")],
            )
            for key, value in series.tags
        ),
    ]


def check_index_row(row: Row) -> None:
    """Checks that `index_rows` makes these cells, for one base or several.

    Raises:
      ValueError: it does not.
    """
    kind, *names = _names_of(row.key)
    columns = {METRIC: b"metric", TAG: b"tag"}
    if kind in columns:
        is_valid = len(names) == (1 if kind == METRIC else 3)
        is_valid &= all(cell == Cell(FAMILY, columns[kind], _ALWAYS, b"") for cell in row.cells)
    else:
        is_valid = all(_is_of_series(row.key, cell) for cell in row.cells)
    if not is_valid or not row.cells:
        raise ValueError(f"row {row.key[:80]!r} is not of the series table")


def _names_of(key: bytes) -> list[bytes]:
    """The kind of a row, then its names as the key has them; no names for rows of series.

    Raises:
      ValueError: no row has this key.
    """
    kind, nul, names_and_id = key.partition(_NUL)
    if kind == TAG:  # the id may hold NULs
        names_and_id, end = names_and_id[: -ID_BYTES - 1], names_and_id[-ID_BYTES - 1 :]
        nul = end[:1] if len(end) == ID_BYTES + 1 else b""
    if nul != _NUL or kind not in (METRIC, SERIES, TAG):
        raise ValueError(f"row key {key[:80]!r} is not of the series table")
    if kind == SERIES:
        return [kind]
    names = names_and_id.split(_NUL)
    for name in names:
        text = name.replace(b"\x01\x01", _NUL).replace(b"\x01\x02", b"\x01").decode()
        if _escaped(text) != name:
            raise ValueError(f"row key {key[:80]!r} is not of the series table")
    return [kind, *names]


def _is_of_series(key: bytes, cell: Cell) -> bool:
    """Whether a cell belongs into the row of a series with this key.

    Raises:
      ValueError: its value is neither a series nor a base.
    """
    if cell.family != FAMILY:
        return False
    if cell.qualifier == b"series":
        document = Cell(FAMILY, b"first", 0, b"0"), Cell(FAMILY, b"last", 0, b"0"), cell
        series = read_series(Row("", key, document)).series
        return cell == Cell(FAMILY, b"series", _ALWAYS, _document(series))
    if cell.qualifier not in (b"first", b"last") or not cell.value.isdigit():
        return False
    base_ms = int(cell.value)
    period = base_ms // PERIOD_MS
    timestamp_ms = _FIRST - period if cell.qualifier == b"first" else period + 1
    base = b"%d" % base_ms
    return base_ms % PERIOD_MS == 0 and cell == Cell(FAMILY, cell.qualifier, timestamp_ms, base)


def longest_key(series: Series) -> int:
    """Bytes of the longest row key of a series in the table."""
    keys = [row_key(SERIES, series.metric), *(row_key(TAG, series.metric, *tag) for tag in series.tags)]
    return max(map(len, keys)) + len(_NUL) + ID_BYTES


def read_series(row: Row) -> SeriesEntry:
    """The entry in the row of a series.

    Raises:
      ValueError: cells are missing or corrupt, or the key is that of another series.
    """
    cells = {cell.qualifier: cell.value for cell in row.cells if cell.family == FAMILY}
    try:
        document = json.loads(cells[b"series"])
        series = Series.of(document["key"], document["tags"], document["resource"])
        entry = SeriesEntry(series, int(cells[b"first"]), int(cells[b"last"]))
        expected_key = series_row(series)
    except KeyError as error:
        raise ValueError(f"series row without {error}") from error
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"corrupt series row: {error}") from error
    if expected_key != row.key:
        raise ValueError(f"this row belongs to another series than the stored {series}")
    if entry.first_ms % PERIOD_MS or entry.last_ms % PERIOD_MS or entry.first_ms > entry.last_ms:
        raise ValueError(f"bases from {entry.first_ms} to {entry.last_ms} ms")
    return entry


def find(table: str, selection: Selection, reader: Reader) -> Iterator[SeriesEntry | tuple[Row, ValueError]]:
    """The selected series; or (a row that cannot be read, why).

    Raises:
      UnknownNameError: the metric is not in the table.
    """
    if selection.metric is None:
        rows = reader.scan(Scan(table, [_below(SERIES)]))
    else:
        metric = row_key(METRIC, selection.metric)
        if metric not in reader.rows(table, [metric]):
            raise UnknownNameError(
                f"No such metric in table {table}: '{selection.metric}'",
                selection.metric,
                lambda start: metrics_from(table, start, reader),
            )
        if selection.tags:
            rows = _rows_of_ids(
                table, selection.metric, _ids(table, selection.metric, selection, reader), reader
            )
        else:
            rows = reader.scan(Scan(table, [_below(row_key(SERIES, selection.metric))]))
    for row in rows:
        try:
            entry = read_series(row)
        except ValueError as error:
            yield row, error
            continue
        if selection.takes(entry.series):
            yield entry


def indexed(table: str, metric: str | None, reader: Reader) -> Iterator[tuple[Series, int]]:
    """(series, first base in ms) of a metric, or of all for None; rows that cannot be read are left out."""
    prefix = SERIES if metric is None else row_key(SERIES, metric)
    for row in reader.scan(Scan(table, [_below(prefix)])):
        with contextlib.suppress(ValueError):  # `timebeam check` reports it
            entry = read_series(row)
            yield entry.series, entry.first_ms


def metrics_from(table: str, start: str, reader: Reader) -> Iterator[str]:
    """The metrics that begin with `start`, ascending by their bytes."""
    head = row_key(METRIC, "")
    first = row_key(METRIC, start)
    for row in reader.scan(Scan(table, [(first, first + b"\xff")], keys_only=True)):
        raw = row.key[len(head) :].replace(b"\x01\x01", _NUL).replace(b"\x01\x02", b"\x01")
        yield raw.decode(errors="replace")


def _ids(table: str, metric: str, selection: Selection, reader: Reader) -> list[bytes]:
    """The ids of the series of a metric that have the selected tags, ascending.

    A tag with any value is looked up only if the selection has no tag with certain values.
    """
    exact = {key: values for key, values in selection.tags.items() if values}
    common: set[bytes] | None = None
    for key, values in (exact or dict(list(selection.tags.items())[:1])).items():
        prefixes = [row_key(TAG, metric, key, value) for value in values] or [row_key(TAG, metric, key)]
        scan = Scan(table, sorted(_below(prefix) for prefix in prefixes), keys_only=True)
        ids = {row.key[-ID_BYTES:] for row in reader.scan(scan)}
        common = ids if common is None else common & ids
    return sorted(common or ())


def _rows_of_ids(table: str, metric: str, ids: Sequence[bytes], reader: Reader) -> Iterable[Row]:
    """The rows of the series with these ids, if they exist."""
    head = row_key(SERIES, metric) + _NUL
    for some in batched(ids, _ROWS_AT_ONCE):
        yield from reader.rows(table, [head + series_id for series_id in some]).values()


def _below(prefix: bytes) -> tuple[bytes, bytes]:
    """The range of keys that continue a prefix with NUL."""
    return prefix + _NUL, prefix + b"\x01"


def _document(series: Series) -> bytes:
    """A series as JSON, as in the body of POST /write."""
    document = {
        "key": series.metric,
        "tags": dict(sorted_pairs(series.tags)),
        "resource": dict(sorted_pairs(series.resources)),
    }
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()


def _escaped(name: str) -> bytes:
    """A name without NUL, in the same order; a query may give a name that no series can have."""
    raw = name.encode(errors="surrogatepass")
    return raw.replace(b"\x01", b"\x01\x02").replace(_NUL, b"\x01\x01") if min(raw, default=2) < 2 else raw
