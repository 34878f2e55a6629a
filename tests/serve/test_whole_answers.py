"""An answer is whole, or an error that says what is missing; two series of equal names are never one."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.support.commands import ingest, timebeam
from tests.support.inputs.annotations import send as send_annotations
from tests.support.plain.rolled import config_file, follow, interval, roll_up, send, with_tables
from tests.support.servers import remote_read
from tests.support.servers.remote_read import EQ, RE
from tests.support.stored import Store
from timebeam.pipelines.options.place import read_config
from timebeam.pipelines.serve.api import Api
from timebeam.pipelines.serve.route_requests import Response, request_of, respond
from timebeam.schema.core.point_fragments import Name
from timebeam.schema.core.points import Series as TimeSeries
from timebeam.schema.stores.opentsdb.options import Names

BASE_S = 1_709_251_200  # 2024-03-01


def stored(bigtable: tuple[str, str], prefix: str, folder: Path, hosts: str, **options: Any) -> Store:
    """Two hours with a point each half an hour of each host: its number."""
    store = Store.create(bigtable, prefix, **options)
    path = folder / "points.txt"
    lines = [
        f"put load {BASE_S + 1800 * half} {number} host={host}\n"
        for number, host in enumerate(hosts, 1)
        for half in range(4)
    ]
    path.write_text("".join(lines))
    os.utime(path, (1_780_000_000, 1_780_000_000))
    flags = ["--format=opentsdb-text", "--auto-create-metrics", "--input", path]
    assert ingest(folder, *store.flags, *flags).letters == []
    return store


def name_again(store: Store, old: str, new: str) -> None:
    """Gives the UID of a tag value the name of another UID."""
    uid = store.uids()[Name("tagv", old)]
    store.remove_row(store.layout.options.uid_table, uid)
    store.set_uid("tagv", "name", uid, new.encode())


def read(api: Api, *matchers: tuple[int, str, str]) -> Response:
    """The answer to a remote read of everything that the matchers pass."""
    body = remote_read.request(BASE_S * 1000, (BASE_S + 7200) * 1000, *matchers)
    return respond(api, request_of("POST", "/api/v1/read", body))


def get(api: Api, m: str, parameter: str = "m") -> Response:
    path = f"/api/query?start={BASE_S}&end={BASE_S + 7199}&{parameter}={quote(m)}"
    return respond(api, request_of("GET", path))


def values(response: Response) -> list[list[float]]:
    """The values of each result."""
    assert response.status == 200, response.body
    return sorted([*result["dps"].values()] for result in json.loads(json.dumps(response.body)))


LOAD = (EQ, "__name__", "load")


def test_a_remote_read_with_an_unreadable_row_is_an_error(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path
) -> None:
    store = stored(bigtable, prefix, tmp_path, "ab")
    rows = [row for row in store.rows() if row.key.endswith(store.uids()[Name("tagv", "b")])]
    store.set_cell(
        store.layout.data_table, rows[0].key, "t", b"\0\7\0\x17", b"\1"
    )  # bytes of values are missing
    api = Api(store.target, store.layout)
    response = read(api, LOAD)
    assert response.status == 500
    message = response.body["error"]["message"]
    assert f"row {rows[0].key.hex()}" in message
    assert "1 problem" in message
    of_other = read(Api(store.target, store.layout), LOAD, (EQ, "host", "a"))
    whole = remote_read.answer(of_other.body)
    assert [labels["host"] for labels, _ in whole] == ["a"]


def test_a_remote_read_of_two_series_with_equal_labels_is_an_error(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path
) -> None:
    store = Store.create(bigtable, prefix, names=Names.ESCAPE)
    path = tmp_path / "points.txt"
    path.write_text("".join(f"put {name} {BASE_S} 1 host=a\n" for name in ("a.b", "a:b")))
    flags = ["--format=opentsdb-text", "--auto-create-metrics", "--input", path]
    assert ingest(tmp_path, *store.flags, *flags).letters == []
    api = Api(store.target, store.layout)
    response = read(api, (EQ, "__name__", "a:b"))
    assert response.status == 500
    assert "{host=a}: another series has its labels" in response.body["error"]["message"]


@pytest.mark.parametrize("salt_width", [0, 1])
@pytest.mark.parametrize("is_rolled_up", [False, True])
def test_two_uids_of_one_name(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path, salt_width: int, is_rolled_up: bool
) -> None:
    """As with a TSD, a literal is the UID of the name, and a TSUID itself; one with both is rejected."""
    store = stored(bigtable, prefix, tmp_path, "abc", salt_width=salt_width)
    config = config_file(tmp_path, [interval("30m", "1d")])
    store = with_tables(store, config)
    roll_up(store, config, BASE_S, BASE_S + 7200)
    uids = store.uids()
    metric, host = uids[Name("metrics", "load")], uids[Name("tagk", "host")]
    tsuid_a, tsuid_b = ((metric + host + uids[Name("tagv", name)]).hex().upper() for name in "ab")
    name_again(store, "b", "a")
    rollups = (store.layout, read_config(str(config))) if is_rolled_up else None
    api = Api(store.target, store.layout, rollups)
    for m in (
        "sum:30m-sum:load",
        "sum:30m-sum:load{host=*}",
        "none:30m-sum:load{}{host=regexp([ab])}",
        "sum:30m-sum:load{}{host=not_literal_or(c)}",
    ):
        response = get(api, m)
        assert response.status == 400, (m, response.body)
        message = response.body["error"]["message"]
        assert f"load{{host=a}} is two series, TSUIDs {tsuid_a} and {tsuid_b}" in message
        assert "timebeam names merge" in message
    assert values(get(api, "sum:30m-sum:load{}{host=literal_or(a|c)}")) == [[4, 4, 4, 4]]
    assert values(get(api, "none:30m-sum:load{}{host=regexp(c)}")) == [[3, 3, 3, 3]]
    assert values(get(api, f"sum:30m-sum:{tsuid_b}", "tsuid")) == [[2] * 4]
    assert values(get(api, f"sum:30m-sum:{tsuid_a}", "tsuid")) == [[1] * 4]
    assert get(api, f"sum:30m-sum:{tsuid_a},{tsuid_b}", "tsuid").status == 400
    assert read(api, LOAD, (RE, "host", "a|b")).status == 400
    flags = [f"--start={BASE_S}", f"--end={BASE_S + 7199}", "--aggregator=none", "--downsample=30m-sum"]
    flags += [f"--rollup-config={config}"] if is_rolled_up else []
    ran = timebeam("query", "load", *store.flags, *flags)
    assert ran.code != 0
    assert f"TSUIDs {tsuid_a} and {tsuid_b}" in ran.err


@pytest.mark.parametrize("is_tagged", [False, True])
def test_two_uids_of_one_name_that_no_read_has_together(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path, is_tagged: bool
) -> None:
    """One has points where there are rollups, the other where there are none."""
    store = Store.create(bigtable, prefix)
    path = tmp_path / "points.txt"
    points = enumerate("aabb")
    path.write_text(
        "".join(f"put load {BASE_S + 1800 * half} {half // 2 + 1} host={host}\n" for half, host in points)
    )
    flags = ["--format=opentsdb-text", "--auto-create-metrics", "--input", path]
    assert ingest(tmp_path, *store.flags, *flags).letters == []
    config = config_file(tmp_path, [interval("30m", "1d")], tagRaw=is_tagged)
    store = with_tables(store, config)
    roll_up(store, config, BASE_S, BASE_S + 3600)
    uids = store.uids()
    metric, host = uids[Name("metrics", "load")], uids[Name("tagk", "host")]
    tsuid_a, tsuid_b = ((metric + host + uids[Name("tagv", name)]).hex().upper() for name in "ab")
    api = Api(store.target, store.layout, (store.layout, read_config(str(config))))
    assert values(get(api, "none:30m-sum:load")) == [[1, 1], [2, 2]]
    name_again(store, "b", "a")
    response = get(api, "sum:30m-sum:load{host=*}")
    assert response.status == 400, response.body
    assert f"TSUIDs {tsuid_a} and {tsuid_b}" in response.body["error"]["message"]


def test_annotations_and_histograms_of_two_uids_of_one_name(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path
) -> None:
    store = stored(bigtable, prefix, tmp_path, "ab")
    name_again(store, "b", "a")
    flags = ["load", *store.flags, f"--start={BASE_S}", f"--end={BASE_S + 7199}"]
    for more in (["--output=annotations"], ["--percentiles=50"]):
        for row in store.rows():  # rows that such a query reads
            store.set_cell(store.layout.data_table, row.key, "t", b"\1\0\0", b"{}")
            store.set_cell(store.layout.data_table, row.key, "t", b"\6\0\0", b"\0")
        ran = timebeam("query", *flags, *more)
        assert ran.code != 0
        assert "is two series, TSUIDs" in ran.err


def test_annotations_of_series_are_in_the_results_of_their_pre_aggregates(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path
) -> None:
    store = stored(bigtable, prefix, tmp_path, "ab")
    groups = [{"metrics": ["*"], "keepTags": [], "aggregators": ["sum"]}]
    config = config_file(tmp_path, [interval("30m", "1d")], groups)
    store = with_tables(store, config)
    roll_up(store, config, BASE_S, BASE_S + 7200)
    uids = store.uids()
    tsuid = uids[Name("metrics", "load")] + uids[Name("tagk", "host")] + uids[Name("tagv", "b")]
    send_annotations(
        store, tmp_path, {"tsuid": tsuid.hex(), "startTime": BASE_S + 60, "description": "moved"}
    )
    for rollups in (None, (store.layout, read_config(str(config)))):
        response = get(Api(store.target, store.layout, rollups), "zimsum:30m-sum:load")
        assert values(response) == [[3] * 4]
        assert [note["description"] for note in response.body[0]["annotations"]] == ["moved"]


def test_marks_of_a_metric_are_found_by_its_uid(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path
) -> None:
    """Another UID has its name: a query by TSUID does not read the marks of that one."""
    config = config_file(tmp_path, [interval("1h", "1d")])
    store = with_tables(Store.create(bigtable, prefix, marked_since="2024-01-01"), config)
    series = [TimeSeries.of(metric, {"host": "a"}) for metric in ("load", "other")]
    send(store, tmp_path, {(each, BASE_S): 1 for each in series})
    follow(store, config)
    uids = store.uids()
    other = uids[Name("metrics", "other")]
    store.remove_row(store.layout.options.uid_table, other)
    store.set_uid("metrics", "name", other, b"load")
    send(store, tmp_path, {(series[1], BASE_S): 5})
    tsuid = other + uids[Name("tagk", "host")] + uids[Name("tagv", "a")]
    api = Api(store.target, store.layout, (store.layout, read_config(str(config))))
    assert values(get(api, f"sum:1h-sum:{tsuid.hex()}", "tsuid")) == [[5]]
