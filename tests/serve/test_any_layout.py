"""Random queries of each layout, archived, and through rollups: API, command and a plain evaluation agree."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import random
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.support.any_store import AnyStore
from tests.support.commands import ingest, timebeam
from tests.support.parsed import place_of
from tests.support.plain.plain_tsd import Dps, PlainQuery, Tags, evaluate
from tests.support.plain.rolled import config_file, interval, roll_up, with_tables
from tests.support.points import FIRST_MS
from tests.support.servers import remote_read
from tests.support.servers.golden_api import differences, normal
from tests.support.servers.remote_read import EQ, NEQ, NRE, RE
from tests.support.stored import Store
from timebeam.pipelines.options.place import read_config
from timebeam.pipelines.serve.api import Api
from timebeam.pipelines.serve.route_requests import request_of, respond
from timebeam.schema.core.contract import ReadableStore
from timebeam.schema.core.points import Series as TimeSeries
from timebeam.schema.query.aggregate import AGGREGATORS
from timebeam.schema.stores.opentsdb.layout import OpenTsdb
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.opentsdb.stored_series import tsuids_of
from timebeam.transforms.query.budget import Budget, Meter
from timebeam.transforms.read.table_reader import TableReader

BASE_S = 1_709_287_200  # 2024-03-01T10:00:00Z
SPAN_S = 3 * 3600
ROLLED_UP, ARCHIVED = ", rolled up", ", archived"
ROLLED = ["sum", "count", "min", "max", "first", "last", "avg"]
"""Functions that rollups serve."""

VARIANTS = [
    "opentsdb",
    "opentsdb, rolled up",
    "opentsdb-salted, rolled up",
    "opentsdb, archived",
    "opentsdb-salted, archived",
    "heroic",
    "heroic-readable, archived",
    "kairosdb-milliseconds",
    "kairosdb-milliseconds, archived",
]
DOUBLES = {"heroic", "heroic-readable"}
"""Layouts that store every value as a float."""

QUERIES = 45
POINTS = 120
LITERAL = {"host": ["a", "b", "c", "d"], "dc": ["x", "y"]}
ORDERED = {"first", "last", "diff"}
"""Aggregators that go by the order of the series, which is that of UIDs in a layout that has them."""

Series = list[tuple[Tags, Dps]]


def random_series(chance: random.Random) -> Series:
    series: Series = []
    for host, dc, rack in (("a", "x", None), ("b", "y", None), ("c", "x", "1"), ("d", "y", "1")):
        tags = {"host": host, "dc": dc} | ({"rack": rack} if rack else {})
        seconds = sorted(chance.sample(range(0, SPAN_S, 30), POINTS))
        kind = chance.choice(["integers", "decimals", "both"])
        points: Dps = []
        for second in seconds:
            is_integer = kind == "integers" or (kind == "both" and chance.random() < 0.5)
            value = chance.randrange(-999, 999) if is_integer else chance.randrange(-999, 999) / 8
            points.append(((BASE_S + second) * 1000, value))
        series.append((tags, points))
    return series


SERIES = random_series(random.Random(19))


@dataclasses.dataclass(frozen=True)
class Stored:
    """The points of `SERIES` in the tables of a layout, with rollups if there is a configuration of them."""

    variant: str
    target: Target
    layout: ReadableStore
    flags: Sequence[str]
    config: Path | None = None

    @property
    def api(self) -> Api:
        rollups = None
        if self.config is not None:
            assert isinstance(self.layout, OpenTsdb)
            rollups = self.layout, read_config(str(self.config))
        return Api(self.target, self.layout, rollups)


@pytest.fixture(scope="module", params=VARIANTS)
def store(
    request: pytest.FixtureRequest, bigtable: tuple[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Stored:
    name = request.param.partition(",")[0]
    options = {"archive": True} if request.param.endswith(ARCHIVED) else {}
    made = AnyStore.create(bigtable, f"api-{VARIANTS.index(request.param)}-", name, **options)
    folder, config = tmp_path_factory.mktemp("api"), None
    flags = [*made.flags, *made.auto_create]
    if request.param.endswith(ARCHIVED):
        send(folder, flags, [(tags, wrong(points)) for tags, points in SERIES])
        age_h = math.ceil((time.time() - BASE_S - 7200) / 3600)  # the last hour is not archived
        archived = timebeam(
            *("archive", *made.flags, f"--older-than={age_h}h", "--quiet-hours=0"),
            *("--delete-source", "--reader-hours=0", "--summary=json"),
        )
        assert archived.code == 0, archived.err
        assert json.loads(archived.out)["points_archived"]
        send(folder, flags, [(tags, points[::2]) for tags, points in SERIES], FIRST_MS + 1000)
    else:
        send(folder, flags, SERIES)
    if request.param.endswith(ROLLED_UP):
        config = config_file(folder, [interval("10m", "1d"), interval("1h", "1n")])
        assert isinstance(made.layout, OpenTsdb)
        tables = with_tables(Store(made.target, made.layout), config)
        roll_up(tables, config, BASE_S, BASE_S + SPAN_S)
    return Stored(request.param, made.target, made.layout, made.flags, config)


def wrong(points: Dps) -> Dps:
    """The points without every fourth one; of the others every second one has another value."""
    return [(time_ms, value if i % 2 else value + 1) for i, (time_ms, value) in enumerate(points) if i % 4]


def send(folder: Path, flags: Sequence[str], series: Series, arrival_ms: int = FIRST_MS) -> None:
    """Ingests the points of some series."""
    lines = [
        f"put sys.load {time_ms // 1000} {value} " + " ".join(f"{key}={text}" for key, text in tags.items())
        for tags, points in series
        for time_ms, value in points
    ]
    path = folder / "points.txt"
    path.write_text("".join(line + "\n" for line in lines))
    os.utime(path, (arrival_ms / 1000, arrival_ms / 1000))
    assert ingest(folder, *flags, "--format=opentsdb-text", "--input", path).letters == []


def random_query(chance: random.Random, functions: Sequence[str], keys: Sequence[str]) -> PlainQuery:
    start, end = sorted(chance.sample(range(SPAN_S), 2))
    aggregator = chance.choice([*sorted(AGGREGATORS.keys() - ORDERED), "none", "none"])
    function, fill = chance.choice(functions), chance.choice(["none", "nan", "null", "zero"])
    downsample = (chance.choice([60, 420, 600, 3600, 5400]), "s", function, fill, None)
    return PlainQuery(
        (BASE_S + start) * 1000,
        (BASE_S + end) * 1000,
        aggregator,
        () if aggregator == "none" else chance.choice([(), *((key,) for key in keys)]),
        chance.choice([None, downsample, downsample]),
        is_rate=chance.random() < 0.3,
        is_counter=chance.random() < 0.5,
        drops_resets=True,
    )


def expected_body(query: PlainQuery, series: Series) -> list[dict[str, Any]]:
    is_null = bool(query.downsample) and query.downsample[3] == "null"
    not_a_number = None if is_null else "NaN"
    return [
        {
            "metric": "sys.load",
            "tags": tags,
            "aggregateTags": keys,
            "dps": {str(time): value if value == value else not_a_number for time, value in dps},
        }
        for tags, keys, dps in evaluate(query, series)
    ]


def url(query: PlainQuery, literal: Mapping[str, Sequence[str]], explicit: bool, tsuids: str = "") -> str:
    words = [query.aggregator]
    if query.downsample:
        count, unit, function, fill, _ = query.downsample
        words.append(f"{count}{unit}-{function}-{fill}")
    if query.is_rate:
        words.append("rate{dropcounter}" if query.is_counter else "rate")
    words += ["explicit_tags"] if explicit else []
    grouping = ",".join(f"{key}=*" for key in query.group_by)
    filters = ",".join(f"{key}=literal_or({'|'.join(values)})" for key, values in literal.items())
    braces = f"{{{grouping}}}{{{filters}}}" if grouping or filters else ""
    asked = "tsuid=" + quote(":".join([*words, tsuids]))
    if not tsuids:
        asked = "m=" + quote(":".join([*words, "sys.load" + braces]))
    return f"/api/query?start={query.start_ms}ms&end={query.end_ms}ms&ms=true&{asked}"


def test_random_queries(store: Stored) -> None:
    series: Series = SERIES
    if store.variant.partition(",")[0] in DOUBLES:
        series = [(tags, [(time, float(value)) for time, value in points]) for tags, points in SERIES]
    check_queries(store, series)


DECLARED = """
[layout.load]
table = "LOAD"
separator = "#"
key = [{ field = "metric" }, { field = "host" }, { time = "timestamp", unit = "ms", width = 13 }]
identity = ["metric", "host"]
gc = { max_versions = 1 }
example = { metric = "sys.load", host = "a", dc = "x", value = 12.5 }

[layout.load.columns]
family = "DC"
series = { value = "value", qualifier = { field = "dc" } }

[layout.load.points]
metric = "{metric}"
value = "value"
"""


def test_random_queries_of_a_declared_table(bigtable: tuple[str, str], tmp_path: Path) -> None:
    declaration = tmp_path / "load.toml"
    declaration.write_text(DECLARED)
    place = [f"--project={bigtable[0]}", f"--instance={bigtable[1]}", "--table-prefix=api-declared-"]
    flags = [*place, "--layout=table", f"--tables={declaration}"]
    assert timebeam("tables", "create", *flags).code == 0
    served = place_of("serve", *flags)
    series = [({key: tags[key] for key in ("host", "dc")}, points) for tags, points in SERIES]
    send(tmp_path, flags, series)
    check_queries(Stored("declared", served.target, served.readable(), flags), series)


def check_queries(store: Stored, series: Series) -> None:
    """Random queries are answered as by a plain evaluation of the series; some of them by the command too."""
    chance = random.Random(store.variant)
    functions = ROLLED if store.config else sorted(AGGREGATORS)
    keys = sorted({key for tags, _ in series for key in tags})
    answered, api = 0, store.api
    tsuid_of: dict[str, str] = {}
    if isinstance(store.layout, OpenTsdb):
        named = [TimeSeries.of("sys.load", tags) for tags, _ in series]
        found = tsuids_of(store.layout, named, TableReader(store.target))
        tsuid_of = {dict(member.tags)["host"]: tsuid.hex() for member, tsuid in found.items()}
    for number in range(QUERIES):
        query = random_query(chance, functions, keys)
        literal = {key: values for key, values in LITERAL.items() if chance.random() < 0.3}
        literal = {key: chance.sample(values, chance.randint(1, 2)) for key, values in literal.items()}
        explicit = {*query.group_by} <= literal.keys() and bool(literal) and chance.random() < 0.5
        selected = [
            (tags, points)
            for tags, points in series
            if all(tags.get(key) in values for key, values in literal.items())
            and not (explicit and tags.keys() != literal.keys())
        ]
        by_tsuid = bool(tsuid_of and selected) and chance.random() < 0.2
        if by_tsuid:  # instead of the filters
            query = dataclasses.replace(query, group_by=())
        tsuids = ",".join(tsuid_of[tags["host"]] for tags, _ in selected) if by_tsuid else ""
        response = respond(api, request_of("GET", url(query, literal, explicit and not by_tsuid, tsuids)))
        body = json.loads(json.dumps(response.body))
        assert response.status == 200, (query, body)
        expected = expected_body(query, selected)
        for result in (*body, *expected):
            result.pop("annotations", None)
        assert differences(normal(body), normal(expected)) == [], query
        answered += any(result["dps"] for result in body)
        if number % 9 == 0 and not by_tsuid:
            shown = [result for result in body if result["dps"]]
            check_command(store, query, literal, shown, explicit)
    assert answered > QUERIES // 2
    meter = Meter(Budget(10_000, 10_000, 10_000, 1 << 20, 60.0))
    whole = PlainQuery(
        BASE_S * 1000, (BASE_S + SPAN_S) * 1000 - 1, "sum", (), (3600, "s", "sum", "none", None)
    )
    assert respond(api.for_request(meter), request_of("GET", url(whole, {}, False))).status == 200
    assert store.variant.endswith(ARCHIVED) or meter.points == (
        len(SERIES) * SPAN_S // 3600 if store.config else len(SERIES) * POINTS
    )


@pytest.mark.parametrize(
    ("filters", "explicit"),
    [
        (["host=a|c"], False),
        (["host=regexp(^[bc]$)", "dc=y"], False),
        (["host=not_iliteral_or(A|b)"], False),
        (["dc=X*"], False),
        (["dc=wildcard(X*)"], False),
        (["host=*", "dc=*"], True),
        (["host=wildcard(*)", "host=not_literal_or(a)"], False),
    ],
)
def test_filters_of_the_command(store: Stored, filters: list[str], explicit: bool) -> None:
    words = "explicit_tags:" if explicit else ""
    m = quote(f"none:{words}sys.load{{}}{{{','.join(filters)}}}")
    url = f"/api/query?start={BASE_S}&end={BASE_S + 600}&m={m}"
    body = respond(store.api, request_of("GET", url)).body
    flags = [f"--start={BASE_S}", f"--end={BASE_S + 600}", "--aggregator=none", "--output=json"]
    flags += ["--explicit-tags"] if explicit else []
    ran = timebeam("query", "sys.load", *store.flags, *flags, *(f"--tag={text}" for text in filters))
    assert ran.code == 0, ran.err
    assert normal(json.loads(ran.out)) == normal(json.loads(json.dumps(body)))
    assert bool(body) is (filters != ["dc=wildcard(X*)"])


@pytest.mark.parametrize(
    ("matchers", "hosts"),
    [
        ([(EQ, "__name__", "sys:load")], "abcd"),
        ([(RE, "__name__", "sys:l.*"), (EQ, "dc", "x")], "ac"),
        ([(NEQ, "__name__", "sys.load"), (EQ, "rack", "")], "ab"),
        ([(EQ, "__name__", "sys:load"), (NRE, "host", "a|b")], "cd"),
        ([(EQ, "__name__", "sys:load"), (EQ, "host", "nobody")], ""),
        ([(EQ, "__name__", "sys:cpu")], ""),
    ],
)
def test_remote_read(store: Stored, matchers: list[tuple[int, str, str]], hosts: str) -> None:
    start_ms, end_ms = (BASE_S + 600) * 1000, (BASE_S + 7260) * 1000
    body = remote_read.request(start_ms, end_ms, *matchers)
    response = respond(store.api, request_of("POST", "/api/v1/read", body))
    assert (response.status, response.media_type) == (200, "application/x-protobuf")
    expected = [
        (
            {"__name__": "sys:load"} | tags,
            [(time_ms, float(value)) for time_ms, value in points if start_ms <= time_ms <= end_ms],
        )
        for tags, points in SERIES
        if tags["host"] in hosts
    ]
    answer = remote_read.answer(response.body)
    assert sorted(answer, key=lambda item: item[0]["host"]) == expected
    assert [sorted(labels.items()) for labels, _ in answer] == sorted(
        sorted(labels.items()) for labels, _ in expected
    )


def test_remote_read_of_intervals(store: Stored) -> None:
    start_ms, end_ms = BASE_S * 1000, (BASE_S + SPAN_S) * 1000
    matchers = [(EQ, "__name__", "sys:load"), (EQ, "host", "a"), (EQ, "__rollup__", "1h-max")]
    body = remote_read.request(start_ms, end_ms, *matchers)
    response = respond(store.api, request_of("POST", "/api/v1/read", body))
    maxima: dict[int, float] = {}
    for time_ms, value in SERIES[0][1]:
        hour_ms = time_ms // 3_600_000 * 3_600_000
        maxima[hour_ms] = max(value, maxima.get(hour_ms, value))
    labels = {"__name__": "sys:load", "__rollup__": "1h-max"} | SERIES[0][0]
    assert remote_read.answer(response.body) == [(labels, sorted(maxima.items()))]
    wrong = remote_read.request(start_ms, end_ms, (EQ, "__rollup__", "hourly"))
    response = respond(store.api, request_of("POST", "/api/v1/read", wrong))
    assert response.status == 400
    assert "Label __rollup__" in response.body["error"]["message"]


def check_command(
    store: Stored,
    query: PlainQuery,
    literal: Mapping[str, Sequence[str]],
    body: list[dict[str, Any]],
    explicit: bool,
) -> None:
    """`timebeam query` gives the same in seconds, without the results that have no points."""
    flags = [f"--start={query.start_ms}", f"--end={query.end_ms}", f"--aggregator={query.aggregator}"]
    if query.downsample:
        count, unit, function, fill, _ = query.downsample
        flags.append(f"--downsample={count}{unit}-{function}-{fill}")
    if query.is_rate:
        flags.append("--rate=rate{dropcounter}" if query.is_counter else "--rate=rate")
    flags += [f"--group-by={key}" for key in query.group_by]
    flags += [f"--tag={key}={'|'.join(values)}" for key, values in literal.items()]
    flags += ["--explicit-tags"] if explicit else []
    flags += ["--rollup-config", str(store.config)] if store.config else []
    ran = timebeam("query", "sys.load", *store.flags, "--output=json", *flags)
    assert ran.code == 0, ran.err
    in_seconds = [
        result | {"dps": {time[:-3]: value for time, value in result["dps"].items()}} for result in body
    ]
    assert differences(normal(json.loads(ran.out)), normal(in_seconds)) == [], query
