"""The series table, in the place of Heroic's metadata in Elasticsearch (docs/spec/heroic.md §6).

| row key | columns of family `series` | for |
|---|---|---|
| `m` NUL metric | `metric` | names of metrics |
| `s` NUL metric NUL id | `series`: JSON as in POST /write; `first`, `last`: bases in ms | a metric's series |
| `t` NUL metric NUL tag key NUL tag value NUL id | `tag` | series by a tag, by how its value begins |

An id is BLAKE2b-128 of the series' key as Heroic writes it. In names, NUL is `01 01` and 01 is `01 02`, which
keeps their order. All cells are functions of series and base: `last` has the number of its period (1 for
1970) as cell timestamp, and `first` 2^31 less that number, so that with one version kept the right one stays,
whatever the order of the writes.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence

from timebeam.schema.layouts.heroic.keys import PERIOD_MS, sorted_pairs
from timebeam.schema.layouts.heroic.wire_key import WireKeys
from timebeam.schema.layouts.reading import Reader, Scan, Selection, UnknownNameError
from timebeam.schema.layouts.tables import Cell, Row
from timebeam.schema.points import Series

FAMILY = "series"
KEY_LIMIT = 4096
"""Bytes that Bigtable takes in a row key."""

ID_BYTES = 16
METRIC, SERIES, TAG = b"m", b"s", b"t"

_NUL = b"\x00"
_ALWAYS = 1  # cell timestamp in ms of what never changes
_FIRST = 1 << 31
_ROWS_AT_ONCE = 1000
_WIRE = WireKeys()


@dataclasses.dataclass(frozen=True, slots=True)
class Known:
    """A series that the table knows, and the bases of its first and last row."""

    series: Series
    first_ms: int
    last_ms: int


def series_id(series: Series) -> bytes:
    """What tells a series from all others, on 16 bytes."""
    key = _WIRE.series_key(series)
    return hashlib.blake2b(key.head + key.tail, digest_size=ID_BYTES).digest()


def row_key(kind: bytes, *names: str) -> bytes:
    """A key of the table, or (without the id at its end) the prefix of keys."""
    return _NUL.join([kind, *map(_escaped, names)])


def index_rows(table: str, series: Series, base_ms: int) -> list[Row]:
    """All rows that the table needs for a series with points in the row of this base."""
    own = _NUL + series_id(series)
    number = base_ms // PERIOD_MS
    text = b"%d" % base_ms
    cells = [
        Cell(FAMILY, b"first", _FIRST - number, text),
        Cell(FAMILY, b"last", number + 1, text),
        Cell(FAMILY, b"series", _ALWAYS, _document(series)),
    ]
    return [
        Row(table, row_key(METRIC, series.metric), [Cell(FAMILY, b"metric", _ALWAYS, b"")]),
        Row(table, row_key(SERIES, series.metric) + own, cells),
        *(
            Row(table, row_key(TAG, series.metric, key, value) + own, [Cell(FAMILY, b"tag", _ALWAYS, b"")])
            for key, value in series.tags
        ),
    ]


def check_index_row(row: Row) -> None:
    """Checks that the cells of a row are some that `index_rows` makes, of one base or of several.

    Raises:
      ValueError: they are not.
    """
    kind, *names = _names_of(row.key)
    columns = {METRIC: b"metric", TAG: b"tag"}
    if kind in columns:
        good = len(names) == (1 if kind == METRIC else 3)
        good &= all(cell == Cell(FAMILY, columns[kind], _ALWAYS, b"") for cell in row.cells)
    else:
        good = all(_is_of_series(row.key, cell) for cell in row.cells)
    if not good or not row.cells:
        raise ValueError(f"row {row.key[:80]!r} is none of the series table")


def _names_of(key: bytes) -> list[bytes]:
    """The kind of a row, and its names as they stand in the key; none for rows of series.

    Raises:
      ValueError: no row has this key.
    """
    kind, nul, rest = key.partition(_NUL)
    if kind == TAG:  # the id may hold NULs
        rest, end = rest[: -ID_BYTES - 1], rest[-ID_BYTES - 1 :]
        nul = end[:1] if len(end) == ID_BYTES + 1 else b""
    if nul != _NUL or kind not in (METRIC, SERIES, TAG):
        raise ValueError(f"row key {key[:80]!r} is none of the series table")
    if kind == SERIES:
        return [kind]
    names = rest.split(_NUL)
    for name in names:
        text = name.replace(b"\x01\x01", _NUL).replace(b"\x01\x02", b"\x01").decode()
        if _escaped(text) != name:
            raise ValueError(f"row key {key[:80]!r} is none of the series table")
    return [kind, *names]


def _is_of_series(key: bytes, cell: Cell) -> bool:
    """Whether a cell is one of the row of a series that has this key.

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
    number = base_ms // PERIOD_MS
    stamp = _FIRST - number if cell.qualifier == b"first" else number + 1
    text = b"%d" % base_ms
    return base_ms % PERIOD_MS == 0 and cell == Cell(FAMILY, cell.qualifier, stamp, text)


def longest_key(series: Series) -> int:
    """Bytes of the longest key that a series has in the table."""
    keys = [row_key(SERIES, series.metric), *(row_key(TAG, series.metric, *tag) for tag in series.tags)]
    return max(map(len, keys)) + len(_NUL) + ID_BYTES


def read_series(row: Row) -> Known:
    """What a series row holds.

    Raises:
      ValueError: cells are missing or damaged, or it is the row of another series.
    """
    cells = {cell.qualifier: cell.value for cell in row.cells if cell.family == FAMILY}
    try:
        document = json.loads(cells[b"series"])
        series = Series.of(document["key"], document["tags"], document["resource"])
        known = Known(series, int(cells[b"first"]), int(cells[b"last"]))
        own = row_key(SERIES, series.metric) + _NUL + series_id(series)
    except KeyError as error:
        raise ValueError(f"series row without {error}") from error
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"damaged series row: {error}") from error
    if own != row.key:
        raise ValueError(f"the row of another series: it holds {series}")
    if known.first_ms % PERIOD_MS or known.last_ms % PERIOD_MS or known.first_ms > known.last_ms:
        raise ValueError(f"bases from {known.first_ms} to {known.last_ms} ms")
    return known


def find(table: str, wanted: Selection, reader: Reader) -> Iterator[Known | tuple[Row, ValueError]]:
    """The series that a query wants, by the table; or a row that cannot be read, and why.

    Raises:
      UnknownNameError: the table does not know the metric.
    """
    if wanted.metric is None:
        rows = reader.scan(Scan(table, [_below(SERIES)]))
    else:
        metric = row_key(METRIC, wanted.metric)
        if metric not in reader.rows(table, [metric]):
            raise UnknownNameError(
                f"No such metric in table {table}: '{wanted.metric}'",
                wanted.metric,
                lambda start: _metrics_from(table, start, reader),
            )
        if wanted.tags:
            rows = _rows_of_ids(table, wanted.metric, _ids(table, wanted.metric, wanted, reader), reader)
        else:
            rows = reader.scan(Scan(table, [_below(row_key(SERIES, wanted.metric))]))
    for row in rows:
        try:
            known = read_series(row)
        except ValueError as error:
            yield row, error
            continue
        if wanted.takes(known.series):
            yield known


def _metrics_from(table: str, start: str, reader: Reader) -> Iterator[str]:
    """The metrics that begin with a text, ascending by their bytes."""
    head = row_key(METRIC, "")
    first = row_key(METRIC, start)
    for row in reader.scan(Scan(table, [(first, first + b"\xff")], keys_only=True)):
        raw = row.key[len(head) :].replace(b"\x01\x01", _NUL).replace(b"\x01\x02", b"\x01")
        yield raw.decode(errors="replace")


def _ids(table: str, metric: str, wanted: Selection, reader: Reader) -> list[bytes]:
    """The ids of the series of a metric that have the wanted tags, ascending.

    A tag of which any value will do narrows a search only if there is no other.
    """
    exact = {key: values for key, values in wanted.tags.items() if values}
    common: set[bytes] | None = None
    for key, values in (exact or dict(list(wanted.tags.items())[:1])).items():
        prefixes = [row_key(TAG, metric, key, value) for value in values] or [row_key(TAG, metric, key)]
        scan = Scan(table, sorted(_below(prefix) for prefix in prefixes), keys_only=True)
        ids = {row.key[-ID_BYTES:] for row in reader.scan(scan)}
        common = ids if common is None else common & ids
    return sorted(common or ())


def _rows_of_ids(table: str, metric: str, ids: Sequence[bytes], reader: Reader) -> Iterable[Row]:
    """The series rows of these ids, as far as they exist."""
    head = row_key(SERIES, metric) + _NUL
    for at in range(0, len(ids), _ROWS_AT_ONCE):
        found = reader.rows(table, [head + own for own in ids[at : at + _ROWS_AT_ONCE]])
        yield from found.values()


def _below(prefix: bytes) -> tuple[bytes, bytes]:
    """The range of keys that go on behind a prefix with NUL."""
    return prefix + _NUL, prefix + b"\x01"


def _document(series: Series) -> bytes:
    """A series as in the body of POST /write."""
    document = {
        "key": series.metric,
        "tags": dict(sorted_pairs(series.tags)),
        "resource": dict(sorted_pairs(series.resources)),
    }
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()


def _escaped(name: str) -> bytes:
    """A name without NUL, in the same order; of a query it may be one that no series can have."""
    raw = name.encode(errors="surrogatepass")
    return raw.replace(b"\x01", b"\x01\x02").replace(_NUL, b"\x01\x01") if min(raw, default=2) < 2 else raw
