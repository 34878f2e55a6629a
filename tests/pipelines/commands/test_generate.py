"""`timebeam generate`: the same bytes for the same seed, and what a pipeline must make of them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from tests.support.commands import ingest, timebeam
from tests.support.pubsub_server import SUBSCRIPTION, TOPIC, PubSubServer
from tests.support.stored import Store

TROUBLE = ("--late=0.02", "--duplicates=0.02", "--corrections=0.02", "--poison=0.01")


@pytest.fixture
def store(bigtable: tuple[str, str], prefix: str) -> Store:
    return Store.create(bigtable, prefix)


def stored(store: Store) -> list[str]:
    """The tables as the CSV of expectations."""
    lines = []
    for series, points in store.points().items():
        tags = " ".join(f"{key}={value}" for key, value in series.tags)
        lines += [f"{series.metric},{tags},{time_ms},{value}" for time_ms, value in points.items()]
    return sorted(lines)


def expected(path: Path) -> list[str]:
    return sorted(path.read_text().splitlines()[1:])


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    for name, seed in (("a.gz", 1), ("b.gz", 1), ("c.gz", 2)):
        flags = ("--points=2000", "--jitter-ms=900", *TROUBLE, f"--seed={seed}", "--output", tmp_path / name)
        assert timebeam("generate", *flags).code == 0
    first, again, other = ((tmp_path / name).read_bytes() for name in ("a.gz", "b.gz", "c.gz"))
    assert first == again != other
    assert len(gzip.decompress(first).splitlines()) > 2000


@pytest.mark.parametrize("form", ["opentsdb-json", "opentsdb-text", "influx"])
def test_a_file_is_stored_as_expected(store: Store, tmp_path: Path, form: str) -> None:
    flags = ("--points=3000", "--series=50", f"--format={form}", *TROUBLE)
    made = timebeam("generate", *flags, "--output", tmp_path / "in", "--expect", tmp_path / "expected.csv")
    assert "stores 3,000 points and rejects" in made.err
    found = ingest(
        tmp_path, *store.flags, f"--format={form}", "--auto-create-metrics", "--input", tmp_path / "in"
    )
    assert stored(store) == expected(tmp_path / "expected.csv")
    assert f"rejects {len(found.letters):,}\n" in made.err


def test_a_topic_is_stored_as_expected(store: Store, tmp_path: Path) -> None:
    flags = (
        "--points=3000",
        "--series=50",
        *TROUBLE,
        "--points-per-message=7",
        "--expect",
        tmp_path / "e.csv",
    )
    with PubSubServer().running() as server:
        assert timebeam("generate", *flags, f"--topic={TOPIC}", "--rate=50000").code == 0
        server.add(server.published)
        ran = timebeam(
            *("ingest", *store.flags, "--format=opentsdb-json", "--auto-create-metrics", "--summary=json"),
            *(
                f"--input-subscription={SUBSCRIPTION}",
                "--stop-when-idle=0.5",
                "--dead-letters",
                tmp_path / "d",
            ),
        )
    assert ran.code == 0, ran.err
    assert stored(store) == expected(tmp_path / "e.csv")
    assert json.loads(ran.out)["points_stored"] >= 3000


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        ([], "give one of --output and --topic"),
        (["--output=a", "--topic=b"], "give one of --output and --topic"),
        (["--output=a", "--jitter-ms=10000"], "--jitter-ms must be less than the step"),
        (["--output=a", "--start=whenever"], "--start:"),
        (["--output=a", "--poison=-1"], "--poison"),
    ],
)
def test_wrong_usage(flags: list[str], text: str) -> None:
    ran = timebeam("generate", *flags)
    assert (ran.code, text in ran.err) == (2, True), ran.err


def test_a_topic_that_is_not_there() -> None:
    with PubSubServer(topics=()).running():
        ran = timebeam("generate", "--points=10", f"--topic={TOPIC}")
    assert ran.code == 1
    assert f"cannot publish to {TOPIC}: Topic not found" in ran.err
