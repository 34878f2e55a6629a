"""Messages of producers through Pub/Sub into each layout, and back by `query`: names, tags, values equal."""

from __future__ import annotations

import base64
import gzip
import json
import math
import re
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue

from tests.support.any_store import EVER_MS, AnyStore
from tests.support.budget import long_but_every
from tests.support.commands import Ran, timebeam
from tests.support.inputs.prometheus_proto import ENCODERS, Plain, snappy
from tests.support.pubsub_server import SUBSCRIPTION, Published, PubSubServer
from timebeam.schema.bits.protobuf import encoded_varint
from timebeam.schema.core.selection import Selected, Selection
from timebeam.transforms.read.table_reader import TableReader

STALE = struct.unpack("<d", struct.pack("<Q", 0x7FF0000000000002))[0]
T = 1_767_225_600_000
LAYOUTS = ["opentsdb", "opentsdb-salted", "heroic", "heroic-readable", "kairosdb-milliseconds"]

Content = dict[tuple[str, tuple[tuple[str, str], ...]], dict[int, float]]
"""Values by time in ms, by metric and tags."""

SERIES: Plain = [
    (
        {"__name__": metric, "instance": "web:9100", "mount point": "/a b", "é": "{x}"},
        [(n + 0.5, T + n * 15_000) for n in range(4)],
    )
    for metric in ("node:load_1", "node_load.5", "disk_ab", "up")
]
EXPECTED: Content = {
    (labels["__name__"], tuple(sorted((key, text) for key, text in labels.items() if key != "__name__"))): {
        time: value for value, time in samples
    }
    for labels, samples in SERIES
}


def ingest(
    store: AnyStore, form: str, messages: Sequence[Published], folder: Path, *flags: str
) -> dict[str, Any]:
    """Streams messages into tables; the summary."""
    with PubSubServer(messages).running() as server:
        ran = timebeam(
            *("ingest", *store.flags, *store.auto_create, f"--format={form}", "--stop-when-idle=0.3"),
            *("--flush-seconds=0.3", f"--input-subscription={SUBSCRIPTION}", "--summary=json"),
            *("--dead-letters", str(folder / "dead"), *flags),
        )
        assert (ran.code, server.left) == (0, 0), ran.err
    return dict(json.loads(ran.out))


def queried(store: AnyStore, metrics: Sequence[str]) -> Content:
    """What `timebeam query` answers for metrics, all series apart."""
    content: Content = {}
    for metric in metrics:
        ran = timebeam(
            *("query", metric, *store.flags, "--start", str(T), "--end", str(T + 3_600_000)),
            *("--aggregator=none", "--output=json-ms"),
        )
        assert ran.code == 0, ran.err
        for answer in json.loads(ran.out):
            series = answer["metric"], tuple(sorted(answer["tags"].items()))
            content[series] = {int(time): float(value) for time, value in answer["dps"].items()}
    return content


@pytest.mark.parametrize(("variant", "version"), long_but_every(2, LAYOUTS, [1, 2]))
def test_remote_write(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path, variant: str, version: int
) -> None:
    store = AnyStore.create(bigtable, prefix, variant)
    messages = [Published(snappy(ENCODERS[version]([series])), T) for series in SERIES]
    summary = ingest(store, "prometheus-remote-write", messages, tmp_path)
    assert (summary["points_stored"], summary["rejected"]) == (16, {})
    assert queried(store, [labels["__name__"] for labels, _ in SERIES]) == EXPECTED


def test_lines_without_a_time_are_one_point_however_often_they_come(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path
) -> None:
    """From the stream, again from the stream, and from the dead letters of a first try without the option."""
    store = AnyStore.create(bigtable, prefix, "heroic")
    messages = [Published(b"m,host=a f=%d" % n, T + 250 + n) for n in (1, 2)]
    messages.append(Published(b"m,host=a f=3 %d" % (T * 1_000_000), T + 999))
    for flags in ((), ("--influx-no-time=publish",), ("--influx-no-time=publish",)):
        summary = ingest(store, "influx", messages, tmp_path, *flags)
        rejected = {} if flags else {"bad-timestamp": 2}
        assert (summary["points_stored"], summary["rejected"]) == (3 if flags else 1, rejected)
    expected = {("m.f", (("host", "a"),)): {T: 3.0, T + 251: 1.0, T + 252: 2.0}}
    assert queried(store, ["m.f"]) == expected
    ran = timebeam(
        *("replay", str(tmp_path / "dead-*.jsonl"), *store.flags, "--format=influx"),
        *("--influx-no-time=publish", "--summary=json", "--dead-letters", str(tmp_path / "again")),
    )
    assert (ran.code, json.loads(ran.out)["points_stored"]) == (0, 2), ran.err
    assert queried(store, ["m.f"]) == expected


def test_what_is_skipped_is_in_the_summary(bigtable: tuple[str, str], prefix: str, tmp_path: Path) -> None:
    """Of a stream and of files; as figures and as lines."""
    store = AnyStore.create(bigtable, prefix, "heroic")
    labels = {"__name__": "q", "quantile": "0.5"}
    values = [1.5, math.nan, math.inf, STALE, 2.5]
    text = ENCODERS[1]([(labels, [(value, T + n * 15_000) for n, value in enumerate(values)])])
    summary = ingest(store, "prometheus-remote-write", [Published(snappy(text), T)] * 2, tmp_path)
    assert (summary["points_read"], summary["rejected"]) == (4, {})
    assert summary["skipped"] == {"not_finite": 4, "stale_markers": 2}
    (tmp_path / "requests").write_bytes(encoded_varint(len(text)) + text)
    for nan, skipped, rejected in (("skip", 2, 0), ("reject", 0, 2)):
        ran = timebeam(
            *("ingest", *store.flags, "--format=prometheus-remote-write", f"--nan={nan}"),
            *("--input", str(tmp_path / "requests"), "--dead-letters", str(tmp_path / "dead")),
        )
        lines = dict(re.findall(r"^ *(\S.*?)  +([\d,]+)$", ran.out, re.M))
        assert (ran.code, lines["points stored"], lines["skipped stale_markers"]) == (0, "2", "1"), ran.out
        assert (int(lines.get("skipped not_finite", 0)), int(lines["rejected"])) == (skipped, rejected)
    nothing_else = ENCODERS[1]([(labels, [(math.nan, T), (STALE, T)])])
    (tmp_path / "nothing_else").write_bytes(encoded_varint(len(nothing_else)) + nothing_else)
    ran = timebeam(
        *("ingest", *store.flags, "--format=prometheus-remote-write", "--summary=json"),
        *("--input", str(tmp_path / "nothing_else"), "--dead-letters", str(tmp_path / "none")),
    )
    assert (ran.code, json.loads(ran.out)["skipped"]) == (0, {"not_finite": 1, "stale_markers": 1}), ran.err


@pytest.mark.parametrize("name", ["requests", "requests.gz"])
def test_remote_write_from_files(bigtable: tuple[str, str], prefix: str, tmp_path: Path, name: str) -> None:
    """Requests of both versions, packed by Snappy or not, each behind its length."""
    store = AnyStore.create(bigtable, prefix, "opentsdb")
    plain = [ENCODERS[1 + number % 2]([series]) for number, series in enumerate(SERIES)]
    requests = [snappy(text) if number < 2 else text for number, text in enumerate(plain)]
    content = b"".join(encoded_varint(len(text)) + text for text in requests)
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    ran = timebeam(
        *("ingest", *store.flags, *store.auto_create, "--format=prometheus-remote-write"),
        *("--input", str(tmp_path / name), "--summary=json", "--dead-letters", str(tmp_path / "dead")),
    )
    assert (ran.code, json.loads(ran.out)["points_stored"]) == (0, 16), ran.err
    assert queried(store, [labels["__name__"] for labels, _ in SERIES]) == EXPECTED


def test_series_with_more_tags_than_opentsdb_allows(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path
) -> None:
    """Series that differ only in dropped tags stay apart, and are the same series in the next message."""
    store = AnyStore.create(bigtable, prefix, "opentsdb")
    shared = {"__name__": "up", **{f"k{n}": "v" for n in range(8)}}
    messages = [
        Published(snappy(ENCODERS[1]([({**shared, "uid": uid}, [(value, T + step)])])), T)
        for step in (0, 15_000)
        for uid, value in (("x", 1.0), ("y", 2.0))
    ]
    flags = ("--overflow-tag=rest", "--drop-tags=uid,k7")
    summary = ingest(store, "prometheus-remote-write", messages, tmp_path, *flags)
    assert (summary["points_stored"], summary["rejected"]) == (4, {})
    content = queried(store, ["up"])
    times = (T, T + 15_000)
    assert sorted(list(points.items()) for points in content.values()) == [
        [(time, value) for time in times] for value in (1.0, 2.0)
    ]
    assert {tuple(key for key, _ in tags) for _, tags in content} == {(*(f"k{n}" for n in range(7)), "rest")}


def otlp_request() -> Any:
    """Two gauges, of integers and decimals, with attributes of a resource and of points."""
    request = ExportMetricsServiceRequest()
    resource = request.resource_metrics.add()
    for key, value in (("service.name", "shop:1"), ("os.type", "linux")):
        resource.resource.attributes.add(key=key, value=AnyValue(string_value=value))
    metrics = resource.scope_metrics.add().metrics
    for name in ("http.server {duration}", "up_time"):
        data = metrics.add(name=name).gauge
        for n in range(3):
            point = data.data_points.add(time_unix_nano=(T + n * 1000) * 1_000_000, as_double=n + 0.25)
            point.attributes.add(key="route", value=AnyValue(string_value="/a b"))
    return request


@pytest.mark.parametrize("variant", LAYOUTS)
def test_otlp(bigtable: tuple[str, str], prefix: str, tmp_path: Path, variant: str) -> None:
    store = AnyStore.create(bigtable, prefix, variant)
    message = Published(
        gzip.compress(otlp_request().SerializeToString()),
        T,
        {"ce-type": "org.opentelemetry.otlp.metrics.v1", "content-encoding": "gzip"},
    )
    summary = ingest(store, "otlp", [message], tmp_path)
    assert (summary["points_stored"], summary["rejected"]) == (6, {})
    tags, in_heroic = (("route", "/a b"), ("service.name", "shop:1")), variant.startswith("heroic")
    assert queried(store, ["http.server {duration}", "up_time"]) == {
        (name, tags[:1] if in_heroic else tags): {T + n * 1000: n + 0.25 for n in range(3)}
        for name in ("http.server {duration}", "up_time")
    }
    selected = [*store.layout.select(Selection(None, {}, 0, EVER_MS), TableReader(store.target))]
    assert {each.series.resources for each in selected if isinstance(each, Selected)} == {
        tags[1:] if in_heroic else ()
    }


def test_telegraf_and_others_in_one_subscription(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path
) -> None:
    store = AnyStore.create(bigtable, prefix, "opentsdb")
    metric = {"fields": {"usage": 1.5}, "name": "cpu", "tags": {"host": "a"}, "timestamp": T // 1000}
    messages = [
        Published(gzip.compress(base64.b64encode(b"mem,host=a used=7i %d000000" % T)), T),
        Published(base64.b64encode(gzip.compress(json.dumps({"metrics": [metric]}).encode())), T),
        Published(base64.b64encode(snappy(ENCODERS[1](SERIES))), T),
        Published(otlp_request().SerializeToString(), T),
        Published(b"nothing of this", T),
    ]
    formats = "--formats=influx,telegraf-json,otlp,prometheus-remote-write"
    summary = ingest(store, "auto", messages, tmp_path, formats)
    assert (summary["points_stored"], summary["rejected"]) == (24, {"unknown-format": 1})
    metrics = ["mem.used", "cpu.usage", "up_time", *(labels["__name__"] for labels, _ in SERIES)]
    content = queried(store, metrics)
    assert EXPECTED.items() <= content.items()
    assert content["mem.used", (("host", "a"),)] == {T: 7.0}
    assert content["cpu.usage", (("host", "a"),)] == {T: 1.5}


def test_files_of_otlp(bigtable: tuple[str, str], prefix: str, tmp_path: Path) -> None:
    store = AnyStore.create(bigtable, prefix, "opentsdb")
    request = otlp_request().SerializeToString()
    (tmp_path / "a.pb").write_bytes(encoded_varint(len(request)) + request)
    (tmp_path / "b.json").write_text(json_format.MessageToJson(otlp_request(), indent=None) + "\n")
    for name in ("a.pb", "b.json"):
        ran = timebeam(
            *("ingest", *store.flags, *store.auto_create, "--format=otlp", "--input", tmp_path / name),
            "--summary=json",
        )
        assert ran.code == 0, ran.err
        assert json.loads(ran.out)["points_stored"] == 6
    assert len(queried(store, ["up_time"])) == 1


def test_names_that_are_escaped_are_a_property_of_the_tables(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path
) -> None:
    store = AnyStore.create(bigtable, prefix, "opentsdb")
    message = Published(snappy(ENCODERS[1](SERIES)), T)
    ingest(store, "prometheus-remote-write", [message], tmp_path)
    text = tmp_path / "points.txt"
    text.write_text(f"put disk_ab {T // 1000 + 100} 7 host=a_b\n")
    ran = timebeam("ingest", *store.flags, "--format=opentsdb-text", "--input", text)
    assert ran.code == 0, ran.err
    assert queried(store, ["disk_ab"])["disk_ab", (("host", "a_b"),)] == {T + 100_000: 7.0}
    listed = timebeam("suggest", "metrics", "disk_", *store.flags, "--output=json")
    assert json.loads(listed.out) == ["disk_ab"]
    ran = timebeam("ingest", *store.flags, "--format=opentsdb-text", "--input", text, "--set=names=refuse")
    assert ran.code == 2
    assert "names refuse" in ran.err


def test_tables_with_names_that_are_not_escaped(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path
) -> None:
    store = AnyStore.create(bigtable, prefix, "opentsdb")
    text = tmp_path / "points.txt"
    text.write_text(f"put disk_ab {T // 1000} 7 host=a_b\n")
    ran = timebeam("ingest", *store.flags, *store.auto_create, "--format=opentsdb-text", "--input", text)
    assert ran.code == 0, ran.err
    ran = timebeam(
        *("ingest", *store.flags, "--format=prometheus-remote-write", "--stop-when-idle=0.3"),
        f"--input-subscription={SUBSCRIPTION}",
    )
    assert ran.code == 2
    assert "--set names=refuse or names=replace" in ran.err
    message = Published(
        snappy(ENCODERS[1]([*SERIES, ({"__name__": "node load_1", "a": "b"}, [(1.0, T)])])), T
    )
    summary = ingest(store, "prometheus-remote-write", [message], tmp_path, "--set=names=replace")
    assert summary["points_stored"] == 17
    assert ("node_load_1", (("a", "b"),)) in queried(store, ["node_load_1"])
    assert queried(store, ["disk_ab"])["disk_ab", (("host", "a_b"),)] == {T: 7.0}


def test_copies_and_replays_carry_escaped_names(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path
) -> None:
    source = AnyStore.create(bigtable, prefix, "opentsdb")
    ingest(source, "prometheus-remote-write", [Published(snappy(ENCODERS[1](SERIES)), T)], tmp_path)
    sink, rejecting = (AnyStore.create(bigtable, f"{prefix}{name}", "opentsdb") for name in ("b-", "c-"))

    def copy(store: AnyStore, *flags: str) -> Ran:
        return timebeam(
            *("copy", "--from=opentsdb", "--to=opentsdb", *source.place, *source.layout_flags()),
            *(
                *store.layout_flags("to_"),
                "--auto-create-metrics",
                "--start=2025-12-31",
                "--end=2026-01-02",
            ),
            *("--dead-letters", str(tmp_path / "copied"), *flags),
        )

    ran = copy(sink)
    assert ran.code == 0, ran.err
    assert queried(sink, [labels["__name__"] for labels, _ in SERIES]) == EXPECTED
    listed = timebeam("suggest", "metrics", "", *sink.flags, "--set=names=escape", "--output=json")
    assert sorted(json.loads(listed.out)) == sorted(labels["__name__"] for labels, _ in SERIES)
    assert copy(rejecting, "--to-set=names=refuse").code == 1
    letters = sorted(tmp_path.glob("copied*"))[-1]
    assert rejecting.cells() == set()
    # What was rejected there can be replayed to tables that become escaped so.
    third = AnyStore.create(bigtable, f"{prefix}d-", "opentsdb")
    replay = ("replay", letters, "--format=opentsdb-json", "--auto-create-metrics", "--set=names=escape")
    ran = timebeam(*replay, *third.flags)
    assert ran.code == 0, ran.err
    assert queried(third, [labels["__name__"] for labels, _ in SERIES]) == EXPECTED
    text = tmp_path / "points.txt"
    text.write_text(f"put disk_ab {T // 1000} 7 host=a_b\n")
    fourth = AnyStore.create(bigtable, f"{prefix}e-", "opentsdb")
    ran = timebeam(
        "ingest", *fourth.flags, "--auto-create-metrics", "--format=opentsdb-text", "--input", text
    )
    assert ran.code == 0, ran.err
    assert timebeam(*replay, *fourth.flags).code == 2
    assert copy(fourth).code == 2


def test_adopted_names(bigtable: tuple[str, str], prefix: str, tmp_path: Path) -> None:
    store = AnyStore.create(bigtable, prefix, "opentsdb")
    ingest(store, "prometheus-remote-write", [Published(snappy(ENCODERS[1](SERIES)), T)], tmp_path)
    ran = timebeam("tables", "adopt", *store.flags)
    assert ran.code == 0, ran.err
    assert queried(store, [labels["__name__"] for labels, _ in SERIES]) == EXPECTED
    plain = AnyStore.create(bigtable, f"{prefix}b-", "opentsdb")
    text = tmp_path / "points.txt"
    text.write_text(f"put disk_ab {T // 1000} 7 host=a_b\n")
    ran = timebeam("ingest", *plain.flags, "--auto-create-metrics", "--format=opentsdb-text", "--input", text)
    assert ran.code == 0, ran.err
    ran = timebeam("tables", "adopt", *plain.flags, "--set=names=escape")
    assert (ran.code, "not an escaped name" in ran.out) == (1, True)
    assert ("disk_ab", (("host", "a_b"),)) in queried(plain, ["disk_ab"])
