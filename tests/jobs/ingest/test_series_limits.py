"""Limits of new series: what grows beyond them is rejected, and everything else is stored."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.any_store import AnyStore
from tests.support.commands import ingest, timebeam
from tests.support.points import BASE_S
from tests.support.processes.streams import letters, stream
from tests.support.pubsub_server import Published, PubSubServer
from tests.support.stored import Store
from timebeam.schema.bits.reasons import Reason, RejectedError
from timebeam.schema.core.points import PointBatch, Series
from timebeam.schema.series.series_limits import SeriesLimits, counts_table
from timebeam.schema.series.series_patterns import MetricLimit
from timebeam.transforms.bigtable.create_tables import create_tables
from timebeam.transforms.ingest.limit_series import LimitState, SeriesLimiter


def lines(metric: str, values: Iterable[object], time_s: int = BASE_S, key: str = "user") -> list[str]:
    """A point of a series for each value of a tag."""
    return [
        json.dumps({"metric": metric, "timestamp": time_s, "value": 1, "tags": {key: str(value)}})
        for value in values
    ]


def write(path: Path, texts: Sequence[str]) -> Path:
    path.write_text("\n".join(texts) + "\n", encoding="utf-8")
    return path


def with_counts(store: AnyStore) -> AnyStore:
    list(create_tables(store.target, [counts_table(store.options["table_prefix"])], dry_run=False))
    return store


def users(store: AnyStore, metric: str) -> set[tuple[int, int]]:
    """(number of the user, seconds after the base) of each point of a metric."""
    return {
        (int(dict(tags)["user"]), time_ms // 1000 - BASE_S)
        for ((name, tags), time_ms) in store.content()
        if name == metric
    }


@pytest.mark.parametrize("variant", ["opentsdb", "heroic", "kairosdb-milliseconds"])
def test_a_metric_that_grows_is_rejected_and_others_are_stored(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path, variant: str
) -> None:
    store = with_counts(AnyStore.create(bigtable, prefix, variant))
    flags = (
        *store.flags,
        *store.auto_create,
        "--format=opentsdb-json",
        "--max-series",
        "flood*=5",
        "--max-series",
        "9",
    )

    def run(name: str, texts: Sequence[str]) -> list[dict[str, Any]]:
        return ingest(tmp_path, *flags, "--input", write(tmp_path / name, texts)).letters

    rejected = run("first.json", lines("flood.a", range(8)) + lines("calm", range(100, 109)))
    assert users(store, "flood.a") == {(user, 0) for user in range(5)}
    assert users(store, "calm") == {(user, 0) for user in range(100, 109)}
    assert [letter["payload"] for letter in rejected] == lines("flood.a", range(5, 8))
    assert {letter["reason"] for letter in rejected} == {"series-limit"}
    message = rejected[0]["message"]
    assert "metric 'flood.a', beyond --max-series 5: it has 5 series; tag key user has 5 values: " in message
    # Another process, later: the existing series go on, and what was counted is remembered.
    texts = lines("flood.a", range(10), BASE_S + 60) + lines("flood.b", range(20, 26))
    texts += lines("calm", [103, 110])
    assert [letter["payload"] for letter in run("second.json", texts)] == [
        *lines("flood.a", range(5, 10), BASE_S + 60),
        *lines("flood.b", [25]),
        *lines("calm", [110]),
    ]
    assert users(store, "flood.a") == {(user, time) for user in range(5) for time in (0, 60)}


def test_names_of_rejected_series_get_no_uids(bigtable: tuple[str, str], prefix: str, tmp_path: Path) -> None:
    store = with_counts(AnyStore.create(bigtable, prefix, "opentsdb"))
    path = write(tmp_path / "in.json", lines("m", range(100)))
    flags = (*store.flags, *store.auto_create, "--format=opentsdb-json", "--max-tag-values=7")
    result = ingest(tmp_path, *flags, "--input", path)
    assert result.summary["uids_assigned"] == 1 + 1 + 7
    assert len(result.letters) == 93
    assert "beyond --max-tag-values 7: tag key user has 7 values: " in result.letters[0]["message"]


def test_tags_of_a_metric_that_is_not_created_get_no_uids_with_a_limit(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path
) -> None:
    store = with_counts(AnyStore.create(bigtable, prefix, "opentsdb"))
    path = write(tmp_path / "in.json", lines("m", range(3)))
    result = ingest(tmp_path, *store.flags, "--format=opentsdb-json", "--max-series=0", "--input", path)
    assert (len(result.letters), result.summary["uids_assigned"]) == (3, 0)
    assert {letter["reason"] for letter in result.letters} == {"unknown-name"}


def test_new_series_of_known_names_count_with_metadata(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path
) -> None:
    """Without it, a series whose names all have UIDs is not seen as new."""

    def pairs(count: int) -> list[str]:
        return [
            json.dumps(
                {
                    "metric": "m",
                    "timestamp": BASE_S,
                    "value": 1,
                    "tags": {"a": f"v{i}", "b": f"v{number % 3}"},
                }
            )
            for number in range(count)
            for i in range(3)
        ]

    for name, meta, rejected in (("a-", "off", 0), ("b-", "track", 5)):
        store = with_counts(AnyStore.create(bigtable, prefix + name, "opentsdb"))
        if meta != "off":
            timebeam("tables", "create", *store.flags, "--meta")
        flags = (*store.flags, *store.auto_create, "--format=opentsdb-json", f"--meta={meta}")
        ingest(tmp_path, *flags, "--input", write(tmp_path / "some.json", pairs(1)))
        path = write(tmp_path / "all.json", pairs(3))
        assert len(ingest(tmp_path, *flags, "--input", path, "--max-series=4").letters) == rejected


def test_a_stream_goes_on_for_all_others(bigtable: tuple[str, str], prefix: str, tmp_path: Path) -> None:
    store = Store.create(bigtable, prefix)
    list(create_tables(store.target, [counts_table(prefix)], dry_run=False))
    texts = [
        text for pair in zip(lines("flood", range(40)), lines("calm", [1] * 40), strict=True) for text in pair
    ]
    messages = [
        Published(text.encode(), 60_000 * (number // 40) + number, {"producer": f"p{number % 2}"})
        for number, text in enumerate(texts)
    ]
    with PubSubServer(messages).running() as server:
        summary = stream(store, tmp_path, "--max-new-series", "flood=3")
        assert server.left == 0
    rejected = letters(tmp_path)
    assert {letter["attributes"]["producer"] for letter in rejected} == {"p0"}
    assert all(
        "new series arrived in this minute; tag key user has" in letter["message"] for letter in rejected
    )
    assert all(json.loads(letter["payload"])["metric"] == "flood" for letter in rejected)
    # 40 messages of each of two minutes, taken together as they come.
    assert 40 - 2 * 3 <= len(rejected) <= 40 - 3
    assert summary["rejected"] == {"series-limit": len(rejected)}


def test_without_their_table_the_ingest_says_how_to_make_it(
    bigtable: tuple[str, str], prefix: str, tmp_path: Path
) -> None:
    store = AnyStore.create(bigtable, prefix, "opentsdb")
    path = write(tmp_path / "in.json", lines("m", [1]))
    ran = timebeam("ingest", *store.flags, "--format=opentsdb-json", "--input", path, "--max-series=10")
    assert ran.code == 1
    assert "--series-limits" in ran.err
    assert timebeam("tables", "create", *store.flags, "--series-limits").code == 0


@pytest.mark.usefixtures("emulator")
def test_declared_tables_have_no_limits_of_series() -> None:
    ran = timebeam(
        *("ingest", "--layout=table", "--tables=examples/tables/sensor.toml", "--format=records"),
        *("--input=x", "--max-series=5", "--project=p", "--instance=i"),
    )
    assert (ran.code, "need a layout of series" in ran.err) == (2, True)


def batch_of(series: Sequence[Series]) -> PointBatch:
    """A point of each series."""
    return PointBatch.of([(one, BASE_S * 1000, False, 1.5) for one in series], 60_000)


def test_workers_count_together(bigtable: tuple[str, str], prefix: str) -> None:
    """Two processes see what the other has let in after both have added it to the table."""
    store = with_counts(AnyStore.create(bigtable, prefix, "heroic"))
    limits = SeriesLimits(series=[MetricLimit("*", 30)], tag_values=[MetricLimit("*", 100)])
    table = counts_table(prefix)
    limiter = SeriesLimiter(store.target, store.layout, limits, table, with_meta=False, dry_run=False)
    states = [LimitState(1000), LimitState(1000)]

    def rejections(worker: int, numbers: range) -> dict[Series, RejectedError]:
        series = [Series.of("m", {"user": f"u{number}"}) for number in numbers]
        return limiter.rejections(states[worker], dict.fromkeys(series), batch_of(series))

    assert not rejections(0, range(20))
    assert not rejections(1, range(20, 30))
    assert not rejections(1, range(10, 20))  # twice in the sum, once in the union
    for state in states:
        limiter.merge(state)
        state.merged_s = -1000.0  # so that it looks again before it decides
    rejected = rejections(0, range(30, 31)) | rejections(1, range(31, 32))
    assert [error.reason for error in rejected.values()] == [Reason.SERIES_LIMIT] * 2
    assert "it has 30 series; tag key user has 30 values" in next(iter(rejected.values())).message
    assert not any(state.changed for state in states)
