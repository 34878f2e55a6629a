"""One data set in every layout: each holds what the files say, and each answers a query as the others do."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.schema.stores.plain_opentsdb import number
from tests.support.any_store import AnyStore
from tests.support.budget import long_after
from tests.support.commands import ingest, timebeam
from tests.support.model import Content, Point, content
from tests.support.plain.plain_query import END_MS as PLAIN_END_MS
from tests.support.plain.plain_query import SENT, Query, expected
from tests.support.plain.plain_query import START_MS as PLAIN_START_MS
from tests.support.points import FIRST_MS, json_line, put, write_file

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "metrics"
SECONDS = 400  # of the examples, which are three quarters of an hour long
LAYOUTS = ("opentsdb", "heroic", "heroic-readable", "kairosdb-legacy", "kairosdb-milliseconds")
DOUBLES = ("heroic", "heroic-readable")  # what they store of integers too

HEROIC_BASE_MS = 418 << 32
KAIROSDB_BASE_MS = 990 * 1_814_400_000
EDGES_MS = [base + step for base in (HEROIC_BASE_MS, KAIROSDB_BASE_MS) for step in (-1000, -1, 0, 1, 1000)]
EDGE = ("edge.value", (("host", "web01"),))


def json_points() -> Iterator[Point]:
    """The points of the JSON example, by the json module."""
    lines = gzip.decompress((EXAMPLES / "cpu-memory.json.gz").read_bytes()).splitlines()
    for record in map(json.loads, lines):
        series = record["metric"], tuple(sorted(record["tags"].items()))
        yield Point(series, record["timestamp"], record["value"], FIRST_MS)


def text_points() -> Iterator[Point]:
    """The points of the text example, by splitting its lines."""
    lines = gzip.decompress((EXAMPLES / "disk-network-process.txt.gz").read_bytes()).decode().splitlines()
    for line in lines:
        metric, time, value, *tags = line.removeprefix("put ").split()
        series = metric, tuple(sorted(tuple(tag.split("=")) for tag in tags))
        yield Point(series, int(time), float(value) if "." in value else int(value), FIRST_MS)


def first(points: Iterable[Point]) -> list[Point]:
    """Those of the first seconds."""
    found = list(points)
    start = min(point.time for point in found)
    return [point for point in found if point.time < start + SECONDS]


JSON = [
    *first(json_points()),
    *(Point(EDGE, time_ms, 0.5 + time_ms % 97, FIRST_MS) for time_ms in EDGES_MS),
]
TEXT = [*first(text_points()), *(point for point in SENT if point.series[0] == "sys.cpu")]


def ingest_all(store: AnyStore, folder: Path) -> None:
    """Ingests both files into a store."""
    folder.mkdir(exist_ok=True)
    flags = (*store.flags, *store.auto_create)
    text = write_file(folder / "points.txt.gz", map(put, TEXT))
    lines = write_file(folder / "points.json", map(json_line, JSON))
    for form, path in (("opentsdb-text", text), ("opentsdb-json", lines)):
        ingested = ingest(folder, *flags, f"--format={form}", "--input", path)
        assert not ingested.letters


@pytest.fixture(scope="module")
def stores(bigtable: tuple[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, AnyStore]:
    """The data set in tables of each layout."""
    folder = tmp_path_factory.mktemp("layouts")
    found = {}
    for variant in LAYOUTS:
        found[variant] = AnyStore.create(bigtable, f"files-{variant}-", variant)
        ingest_all(found[variant], folder / variant)
    return found


def as_stored(points: Sequence[Point], variant: str) -> Content:
    """What must be found in the tables of a layout."""
    if variant in DOUBLES:
        points = [point._replace(value=float(point.value)) for point in points]
    return content(points)


@pytest.mark.parametrize("variant", LAYOUTS)
def test_every_point_is_there(stores: dict[str, AnyStore], variant: str) -> None:
    wanted = as_stored([*JSON, *TEXT], variant)
    assert len(wanted) == len(JSON) + len(TEXT) > 5_000
    assert stores[variant].content() == wanted


@pytest.mark.parametrize("variant", LAYOUTS)
def test_the_tables_are_sound(stores: dict[str, AnyStore], variant: str) -> None:
    ran = timebeam("check", *stores[variant].flags)
    assert (ran.code, ran.err) == (0, "")
    (line,) = ran.out.splitlines()
    assert line.endswith("corrupt: 0; notes: 0")


@pytest.mark.parametrize("variant", long_after(3, LAYOUTS))
def test_the_same_files_again_change_no_cell(
    stores: dict[str, AnyStore], variant: str, tmp_path: Path
) -> None:
    before = stores[variant].cells()
    ingest_all(stores[variant], tmp_path / "again")
    assert stores[variant].cells() == before
    assert {cell.table for cell in before} == {spec.name for spec in stores[variant].layout.tables()}
    data = stores[variant].layout.tables()[0].name
    stamps = {cell.timestamp_ms for cell in before if cell.table == data}
    assert stamps == {FIRST_MS}


START_MS = min(point.time_ms for point in JSON)
END_MS = START_MS + SECONDS * 1000
WHOLE = (START_MS, END_MS)
MIDDLE = (START_MS + 61_000, END_MS - 47_000)
EDGE_RANGES = [
    (HEROIC_BASE_MS, HEROIC_BASE_MS),
    (HEROIC_BASE_MS - 1, HEROIC_BASE_MS),
    (HEROIC_BASE_MS, HEROIC_BASE_MS + 1),
    (HEROIC_BASE_MS - 1000, HEROIC_BASE_MS - 1),
    (HEROIC_BASE_MS - 10_000, HEROIC_BASE_MS + 1000),
    (KAIROSDB_BASE_MS, KAIROSDB_BASE_MS),
    (KAIROSDB_BASE_MS - 1, KAIROSDB_BASE_MS + 1),
    (HEROIC_BASE_MS + 1, KAIROSDB_BASE_MS),
    (EDGES_MS[0], EDGES_MS[-1]),
]
CPU, LOAD, DISK = "sys.cpu.percent", "sys.load", "sys.disk.bytes"

QUERIES = [
    (CPU, WHOLE, ["--aggregator=none"]),
    (CPU, MIDDLE, ["--aggregator=sum", "--group-by", "mode"]),
    (CPU, MIDDLE, ["--aggregator=avg", "--group-by", "core", "--group-by", "mode", "--downsample=30s-avg"]),
    (CPU, WHOLE, ["--aggregator=max", "--tag", "mode=user|system", "--tag", "core=*"]),
    (CPU, WHOLE, ["--aggregator=count", "--tag", "mode=idle"]),
    (LOAD, MIDDLE, ["--aggregator=min", "--downsample=1m-max"]),
    (LOAD, WHOLE, ["--aggregator=avg", "--group-by", "window", "--tag", "host=web01"]),
    (DISK, MIDDLE, ["--aggregator=sum", "--group-by", "direction", "--downsample=1m-max"]),
    (DISK, WHOLE, ["--aggregator=max", "--tag", "direction=read"]),
    *((EDGE[0], between, ["--aggregator=none"]) for between in EDGE_RANGES),
    (EDGE[0], (EDGES_MS[0], EDGES_MS[-1]), ["--aggregator=sum", "--downsample=1d-count"]),
]


@pytest.mark.parametrize("query", QUERIES, ids=str)
def test_all_layouts_give_one_answer(
    stores: dict[str, AnyStore], query: tuple[str, tuple[int, int], list[str]]
) -> None:
    """`tests.pipelines.commands.test_query` compares OpenTSDB's layout with a plain computation."""
    metric, (start_ms, end_ms), flags = query
    answers = {}
    for variant, store in stores.items():
        ran = timebeam(
            *("query", metric, *store.flags, f"--start={start_ms}", f"--end={end_ms}", "--output=json-ms"),
            *flags,
        )
        assert (ran.code, ran.err) == (0, ""), variant
        answers[variant] = json.loads(ran.out)
    assert answers["opentsdb"]
    assert [variant for variant, answer in answers.items() if answer != answers["opentsdb"]] == []


@pytest.mark.parametrize("between", EDGE_RANGES)
def test_points_on_the_first_instant_of_a_row_are_found(
    stores: dict[str, AnyStore], between: tuple[int, int]
) -> None:
    start_ms, end_ms = between
    for store in stores.values():
        ran = timebeam(
            *("query", EDGE[0], *store.flags, f"--start={start_ms}", f"--end={end_ms}", "--output=json-ms"),
            "--aggregator=none",
        )
        wanted = {str(at): 0.5 + at % 97 for at in EDGES_MS if start_ms <= at <= end_ms}
        assert [result["dps"] for result in json.loads(ran.out)] == [wanted]


@pytest.mark.parametrize(
    "query",
    [
        Query(aggregator="none"),
        Query(group_by=["host"], aggregator="max"),
        Query({"core": {"0", "1"}, "host": {"a", "b"}}, group_by=["host"]),
        Query({"core": set(), "host": {"b"}}, group_by=["core"], aggregator="avg"),
        Query({"host": {"a", "b"}}, aggregator="max", downsample=(60_000, "count")),
        Query(aggregator="sum", downsample=(47_000, "min")),
        Query(group_by=["host"], aggregator="avg", downsample=(3_600_000, "sum")),
    ],
    ids=lambda query: " ".join(query.flags()),
)
def test_series_with_points_at_other_times_are_interpolated_alike(
    stores: dict[str, AnyStore], query: Query
) -> None:
    """Against a plain computation, which knows no layout."""
    wanted = expected(query)
    assert wanted
    for store in stores.values():
        ran = timebeam(
            *("query", "sys.cpu", *store.flags, f"--start={PLAIN_START_MS}", f"--end={PLAIN_END_MS}"),
            *(*query.flags(), "--output=json-ms"),
        )
        assert (ran.code, ran.err) == (0, "")
        found = json.loads(ran.out)
        assert [(one["tags"], one["aggregateTags"]) for one in found] == [one[:2] for one in wanted]
        for one, (_, _, dps) in zip(found, wanted, strict=True):
            assert one["dps"] == pytest.approx(dps, rel=1e-12, abs=1e-9)


NOT_JSON_OF_POINTS = ["bad-number", "bad-number", "bad-syntax", "bad-timestamp", "no-tags"]
BLANK = Point(("sys load", (("host", "web01"), ("window", "1m"))), 1_795_250_206, 0.5, FIRST_MS)
KANJI = Point(("sys.load", (("host", "東京"), ("window", "1m"))), 1_795_250_210, 0.5, FIRST_MS)
GOOD = Point(("sys.load", (("host", "web02"), ("window", "1m"))), 1_795_250_208, 0.25, FIRST_MS)


@pytest.mark.parametrize("variant", LAYOUTS)
def test_each_layout_takes_the_names_that_it_can_hold(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path, variant: str
) -> None:
    """Of the broken example: blanks and other letters are names in Heroic and KairosDB."""
    store = AnyStore.create(bigtable, prefix, variant)
    path = EXAMPLES / "broken.json"
    ingested = ingest(tmp_path, *store.flags, *store.auto_create, "--format=opentsdb-json", "--input", path)
    reasons = sorted(letter["reason"] for letter in ingested.letters)
    if variant == "opentsdb":
        assert reasons == sorted([*NOT_JSON_OF_POINTS, "bad-metric", "name-not-storable"])
        assert store.content() == content([GOOD])
    else:
        assert reasons == NOT_JSON_OF_POINTS
        assert store.content() == content([GOOD, BLANK, KANJI])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_of_two_types_at_one_instant_the_later_line_is_found(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path, layout: str
) -> None:
    """Also from a file in gzip; KairosDB has a row for each type, with one timestamp."""
    store = AnyStore.create(bigtable, prefix, layout)
    series = ("m", (("host", "a"),))
    values: list[float | int] = [1.5, 2, 1, 2.5]
    lines = [put(Point(series, 1_700_006_400 + n // 2, value, FIRST_MS)) for n, value in enumerate(values)]
    path = write_file(tmp_path / "points.txt.gz", lines)
    ingest(tmp_path, *store.flags, *store.auto_create, "--format=opentsdb-text", "--input", path)
    found = {time_ms // 1000 - 1_700_006_400: value for (_, time_ms), value in store.content().items()}
    later = [float(value) if layout in DOUBLES else value for value in (2, 2.5)]
    assert found == dict(enumerate(map(number, later)))
