"""The series table: what is written, what a query finds through it, what an audit says of it."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.schema.stores.plain_heroic import PERIOD, Tables, row_key
from tests.support.decoded import decode_row
from timebeam.schema.core.contract import pack_row
from timebeam.schema.core.point_fragments import Packing
from timebeam.schema.core.points import PointBatch, Series
from timebeam.schema.core.rows import Cell, Row
from timebeam.schema.core.selection import Finding, Selected, Selection, Severity, UnknownNameError
from timebeam.schema.stores.heroic.layout import Heroic
from timebeam.schema.stores.heroic.options import HeroicOptions, HeroicReadableOptions

NAMES = st.sampled_from(["", "a", "b", "aa", "\x00", "\x01", "a\x00", "é"])
TAGS = st.dictionaries(NAMES, NAMES, max_size=2)
SERIES = st.builds(Series.of, NAMES, TAGS, TAGS)
TIMES = st.integers(0, 12 * PERIOD) | st.integers(0, 12).map(lambda n: n * PERIOD)
POINTS = st.lists(st.tuples(SERIES, TIMES), max_size=12)
LAYOUTS = pytest.mark.parametrize(
    "layout",
    [Heroic(), Heroic(HeroicReadableOptions()), Heroic(HeroicReadableOptions(resource_names=True))],
    ids=["wire", "text", "names"],
)
A = Series.of("cpu", {"host": "a"})
PODS = [Series.of("cpu", {"host": "a"}, {"pod": pod}) for pod in "pq"]


def written(layout: Heroic, points: Sequence[tuple[Series, int]]) -> Tables:
    """Tables with these points, each with its time as value; the index rows twice, in any order."""
    tables = Tables()
    batch = PointBatch.of([(series, time, True, float(time)) for series, time in points], 1)
    encoded = layout.encode(batch, [layout.series_key(series, {}) for series in batch.series])
    for fragment in encoded.fragments:
        tables.write([pack_row(layout, fragment.table, fragment.key, [fragment.packed], Packing.POINTS)])
    entries = list(layout.index.entries(batch)) * 2
    assert len(set(entries)) == len({(series, time - time % PERIOD) for series, time in points})
    random.Random(len(points)).shuffle(entries)
    for number, base_ms in entries:
        tables.write(layout.index.rows(batch.series[number], base_ms))
    return tables


def answer(layout: Heroic, tables: Tables, wanted: Selection) -> set[tuple[Series, int]]:
    """The points that a query finds; Heroic's own rows of a series come in the order of time."""
    found: set[tuple[Series, int]] = set()
    last: dict[Series, int] = {}
    for one in layout.select(wanted, tables):
        assert isinstance(one, Selected), one
        for series, time, value in decode_row(layout, *one).batch.points():
            assert value == float(time)
            assert (series, time) not in found
            assert last.get(series, -1) < time or layout.name != "heroic"
            last[series] = time
            found.add((series, time))
    return found


def same_in_text(series: Series) -> tuple[object, ...]:
    """What the keys of the readable layout tell of a series."""
    return series.metric, series.tags, tuple(value for _, value in series.resources)


WANTED = st.dictionaries(NAMES, st.frozensets(NAMES, max_size=2), max_size=2)


@LAYOUTS
@given(points=POINTS, metric=st.none() | NAMES, tags=WANTED, times=st.tuples(TIMES, TIMES))
def test_a_query_finds_what_it_wants_and_nothing_else(
    layout: Heroic,
    points: list[tuple[Series, int]],
    metric: str | None,
    tags: dict[str, frozenset[str]],
    times: tuple[int, int],
) -> None:
    if layout == Heroic(HeroicReadableOptions()):  # of series that share their rows the first one only
        first = {same_in_text(series): series for series, _ in reversed(points)}
        points = [point for point in points if first[same_in_text(point[0])] == point[0]]
    tables = written(layout, points)
    wanted = Selection(metric, tags, min(times), max(times))
    if metric is not None and metric not in {series.metric for series, _ in points}:
        with pytest.raises(UnknownNameError, match="No such metric"):
            answer(layout, tables, wanted)
        return
    expected = {
        (series, time)
        for series, time in points
        if (metric is None or series.metric == metric)
        and all(
            key in dict(series.tags) and (not values or dict(series.tags)[key] in values)
            for key, values in tags.items()
        )
        and wanted.start_ms <= time <= wanted.end_ms
    }
    assert answer(layout, tables, wanted) == expected
    assert list(layout.audit(tables.read)) == []


@LAYOUTS
def test_times_outside_of_what_can_be_stored(layout: Heroic) -> None:
    last = (1 << 63) - 1
    tables = written(layout, [(A, last)])
    assert answer(layout, tables, Selection("cpu", {}, -5, 1 << 70)) == {(A, last)}
    tables = written(layout, [(A, 0)])
    assert answer(layout, tables, Selection("cpu", {}, -5, 1 << 70)) == {(A, 0)}
    assert answer(layout, tables, Selection("cpu", {}, 5, 4)) == set()
    assert answer(layout, tables, Selection("cpu", {}, -9, -1)) == set()


def test_many_series_are_read_by_several_scans() -> None:
    layout = Heroic(HeroicReadableOptions())
    points = [(Series.of("cpu", {"host": str(n)}), n) for n in range(510)]
    assert len(answer(layout, written(layout, points), Selection("cpu", {}, 0, PERIOD - 1))) == 510


@LAYOUTS
def test_series_that_differ_in_resources_are_found_in_all_their_periods(layout: Heroic) -> None:
    points = [(PODS[0], 2 * PERIOD), (PODS[1], 5 * PERIOD), (A, 8 * PERIOD)]
    for some in itertools.permutations(points):
        assert answer(layout, written(layout, some), Selection("cpu", {}, 0, 9 * PERIOD)) == set(points)


def test_keys_with_and_without_names_of_resources_are_read_whatever_the_option() -> None:
    short, long = Heroic(HeroicReadableOptions()), Heroic(HeroicReadableOptions(resource_names=True))
    tables, others = written(short, [(PODS[0], 1)]), written(long, [(PODS[1], 2)])
    for table in ("metrics", "series"):
        tables.write(others.read(table))
    for layout in (short, long):
        assert answer(layout, tables, Selection("cpu", {}, 0, 9)) == {(PODS[0], 1), (PODS[1], 2)}
        assert list(layout.audit(tables.read)) == []


def test_adjacent_rows_of_a_series_are_one_range_of_one_scan() -> None:
    layout = Heroic()
    tables = written(layout, [(A, n * PERIOD + 1) for n in range(6)])
    scans = []

    class Watched(Tables):
        def scan(self, scan):  # type: ignore[no-untyped-def]
            scans.append(scan)
            return tables.scan(scan)

        def rows(self, table, keys):  # type: ignore[no-untyped-def]
            return tables.rows(table, keys)

    assert len(list(layout.select(Selection("cpu", {}, 3, 5 * PERIOD), Watched()))) == 5 - 1
    data = [scan for scan in scans if scan.table == "metrics"]
    assert [len(scan.ranges) for scan in data] == [1, 1, 1]
    assert [scan.columns for scan in data] == [
        ("points", b"\0\0\0\3", b""),
        ("points", b"", b""),
        ("points", b"", b"\0\0\0\1"),
    ]


def test_the_rows_of_the_series_table() -> None:
    layout = Heroic(HeroicOptions("x-"))
    series = Series.of("cpu", {"host": "a", "n\0l": "\1"}, {"pod": "p"})
    metric, own, *tags = sorted(layout.index.rows(series, 3 * PERIOD), key=lambda row: row.key)
    assert {row.table for row in (metric, own, *tags)} == {"x-series"}
    assert (metric.key, metric.cells) == (b"m\0cpu", [Cell("series", b"metric", 1, b"")])
    assert own.key[:6] == b"s\0cpu\0"
    assert own.cells == [
        Cell("series", b"first", (1 << 31) - 3, b"12884901888"),
        Cell("series", b"last", 4, b"12884901888"),
        Cell("series", b"series", 1, own.cells[2].value),
    ]
    assert json.loads(own.cells[2].value) == {
        "key": "cpu",
        "tags": {"host": "a", "n\0l": "\1"},
        "resource": {"pod": "p"},
    }
    identity = own.key[6:]
    assert [row.key for row in tags] == [
        b"t\0cpu\0host\0a\0" + identity,
        b"t\0cpu\0n\1\1l\0\1\2\0" + identity,
    ]
    assert len(identity) == 16
    last = layout.index.rows(series, (1 << 63) - PERIOD)
    assert min(cell.timestamp_ms for row in last for cell in row.cells) == 1


@LAYOUTS
@given(bases=st.lists(st.integers(0, (1 << 31) - 1).map(lambda n: n * PERIOD), min_size=1, max_size=6))
def test_the_first_and_last_base_stay_whatever_the_order(layout: Heroic, bases: list[int]) -> None:
    found = set()
    for order in itertools.islice(itertools.permutations(bases), 24):
        tables = Tables()
        for base in order:
            tables.write(layout.index.rows(A, base))
        (row,) = [row for row in tables.read("series") if row.key.startswith(b"s")]
        cells = {cell.qualifier: int(cell.value) for cell in row.cells if cell.qualifier != b"series"}
        assert cells == {b"first": min(bases), b"last": max(bases)}
        found.add(str(tables.read("series")))
    assert len(found) == 1


def test_the_series_table_is_made_anew_from_the_keys() -> None:
    for layout in (Heroic(), Heroic(HeroicReadableOptions(resource_names=True))):
        tables = written(layout, [(series, n * PERIOD + 7) for series in [A, *PODS] for n in (2, 5)])
        anew = Tables()
        for row in tables.read("metrics"):
            anew.write(layout.index.rows(*layout.index.entry_of(row.key)))
        assert anew.read("series") == tables.read("series")
    with pytest.raises(ValueError, match="resources without their names"):
        Heroic(HeroicReadableOptions()).index.entry_of(row_key("heroic-readable", PODS[0], 0))


def findings(
    layout: Heroic, tables: Tables, wanted: Selection | None = None
) -> list[tuple[Severity, str, bytes, str]]:
    """What an audit, or else a query, finds."""
    found = layout.audit(tables.read) if wanted is None else layout.select(wanted, tables)
    return [tuple(one) for one in found if isinstance(one, Finding)]  # type: ignore[misc]


EVERYTHING = Selection("cpu", {}, 0, 9 * PERIOD)


def test_series_that_share_their_rows_are_told() -> None:
    layout = Heroic(HeroicReadableOptions())
    other = Series.of("cpu", {"host": "a"}, {"zone": "p"})
    tables = written(layout, [(PODS[0], 1), (other, 2), (A, 3)])
    key = row_key("heroic-readable", other, 0)
    for found in (findings(layout, tables, EVERYTHING), findings(layout, tables)[:1]):
        ((severity, table, where, text),) = found
        assert (severity, table, where) == (Severity.CORRUPT, "metrics", key)
        assert "have the same row keys" in text


def test_resources_whose_names_are_lost_are_told() -> None:
    layout = Heroic(HeroicReadableOptions())
    tables = written(layout, [(PODS[0], 1), (A, 1)])
    lost = next(
        row.key for row in tables.read("series") if row.key[:2] == b"s\0" and b"pod" in row.cells[2].value
    )
    tables.remove("series", lost)
    key = row_key("heroic-readable", PODS[0], 0)
    text = "the names of its resources are not in the series table"
    assert findings(layout, tables, EVERYTHING) == [(Severity.CORRUPT, "metrics", key, text)]


@LAYOUTS
def test_sound_and_empty_tables_have_no_findings(layout: Heroic) -> None:
    tables = written(layout, [(series, time) for series in [A, *PODS] for time in (0, PERIOD)])
    assert findings(layout, tables) == []
    assert findings(layout, Tables()) == []


def test_a_query_tells_rows_that_cannot_be_read() -> None:
    layout = Heroic()
    tables = written(layout, [(A, 1), (PODS[0], 1)])
    bad = row_key("heroic", A, 0) + b"\2"
    tables.write([Row("metrics", bad, [Cell("points", bytes(4), 1, bytes(8))])])
    tables.write([Row("series", b"s\0cpu\0" + bytes(16), [Cell("series", b"series", 1, b"{")])])
    found = findings(layout, tables, EVERYTHING)
    assert [(severity, table, key) for severity, table, key, _ in found] == [
        (Severity.CORRUPT, "series", b"s\0cpu\0" + bytes(16)),
        (Severity.CORRUPT, "metrics", bad),
    ]


def series_row(tables: Tables) -> Row:
    return next(row for row in tables.read("series") if row.key.startswith(b"s\0"))


def changed(row: Row, qualifier: bytes, value: bytes) -> Row:
    """A row with another value in one column, as a newer version."""
    return row._replace(cells=[Cell("series", qualifier, 1 << 40, value)])


@pytest.mark.parametrize(
    ("qualifier", "value", "text"),
    [
        (b"series", b"[]", "corrupt series row"),
        (
            b"series",
            b'{"key":"cpu","tags":{"host":"b"},"resource":{}}',
            "this row belongs to another series than the stored cpu{host=b}",
        ),
        (b"first", b"x", "corrupt series row"),
        (b"first", b"8589934592", "bases from 8589934592 to 4294967296 ms"),
        (b"last", b"4294967297", "bases from 4294967296 to 4294967297 ms"),
    ],
)
def test_corrupt_series_rows(qualifier: bytes, value: bytes, text: str) -> None:
    layout = Heroic()
    tables = written(layout, [(A, PERIOD)])
    own = series_row(tables)
    tables.write([changed(own, qualifier, value)])
    found = findings(layout, tables)
    assert found[0][:3] == (Severity.CORRUPT, "series", own.key)
    assert text in found[0][3]
    assert [(severity, table) for severity, table, _, _ in found[1:]] == [
        (Severity.NOTE, "series"),
        (Severity.NOTE, "series"),
        (Severity.CORRUPT, "metrics"),
    ]
    assert found[3][3] == "cpu{host=a} is not in the series table: queries do not find it"


def test_a_series_row_without_its_cells() -> None:
    tables = Tables()
    tables.write([Row("series", b"s\0cpu\0" + bytes(16), [Cell("series", b"first", 1, b"0")])])
    ((severity, _, _, text),) = findings(Heroic(), tables)
    assert (severity, text) == (Severity.CORRUPT, "series row without b'series'")


def test_rows_that_are_missing_or_too_many() -> None:
    layout = Heroic()
    tables = written(layout, [(A, PERIOD)])
    tag = next(row.key for row in tables.read("series") if row.key.startswith(b"t\0"))
    tables.remove("series", tag)
    tables.remove("series", b"m\0cpu")
    text = "missing: queries may not find cpu{host=a}"
    assert findings(layout, tables) == [
        (Severity.CORRUPT, "series", b"m\0cpu", text),
        (Severity.CORRUPT, "series", tag, text),
    ]
    tables = written(layout, [(A, PERIOD)])
    other = written(layout, [(Series.of("mem", {}), 1)])
    tables.write(other.read("metrics") + other.read("series"))
    tables.remove("metrics", row_key("heroic", A, PERIOD))
    tables.write([Row("series", b"m\0gone", [Cell("series", b"metric", 1, b"")])])
    tables.write([Row("series", b"other", [Cell("series", b"x", 1, b"")])])
    assert findings(layout, tables) == [
        (Severity.CORRUPT, "series", b"other", "no row of the series table has such a key"),
        (Severity.NOTE, "series", b"m\0gone", "no series row belongs to it (left by an interrupted write)"),
        (
            Severity.NOTE,
            "series",
            series_row(tables).key,
            "cpu{host=a} has no row of points (left by an interrupted write)",
        ),
    ]


def test_data_rows_that_are_not_as_they_should_be() -> None:
    layout = Heroic()
    tables = written(layout, [(A, PERIOD)])
    early = row_key("heroic", A, 0)
    negative = row_key("heroic", A, -PERIOD)
    cells = [Cell("points", bytes(4), 1, bytes(8))]
    tables.write([Row("metrics", b"\xff", cells), Row("metrics", early, cells)])
    tables.write([Row("metrics", negative, [Cell("points", b"1", 1, bytes(8))])])
    found = findings(layout, tables)
    assert all((severity, table) == (Severity.CORRUPT, "metrics") for severity, table, _, _ in found)
    texts = [(key, text) for _, _, key, text in found]
    assert texts[0] == (early, "base 0 is not within the bases of the series table, 4294967296 to 4294967296")
    assert [key for key, _ in texts[1:]] == [negative, negative, negative, b"\xff"]
    assert "before 1970" in texts[1][1]
    assert "not an offset from the base" in texts[3][1]
    assert "is not Heroic's" in texts[4][1]
