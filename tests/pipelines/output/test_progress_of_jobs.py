"""Every job over input of a known size counts its work: when it ends, all that was planned is done."""

from __future__ import annotations

import bz2
import datetime
import gzip
import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from tests.jobs.trees.forest import Forest
from tests.support.any_store import AnyStore
from tests.support.commands import ingest, timebeam
from tests.support.plain.rollup_declared import Place
from tests.support.points import put, put_file, random_points, write_file
from timebeam.pipelines.output.progress_and_summary import progress_text
from timebeam.transforms.dead_letters import replay
from timebeam.transforms.flow import metrics
from timebeam.transforms.input.files import blocks, match, spans

POINTS = random_points(300)
COMPRESSIONS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".zst": zstandard.compress,
}


def work() -> int:
    """The work of the last run, all of which must be done."""
    assert metrics.totals[metrics.WORK_DONE] == metrics.totals[metrics.WORK_PLANNED]
    assert ", 100%, about 0 s left: " in progress_text(metrics.totals, 0, 1.0)
    return metrics.totals[metrics.WORK_DONE]


def run(*arguments: str | Path) -> int:
    """Runs a job, which must succeed; its work."""
    ran = timebeam(*arguments)
    assert ran.code == 0, ran.err
    return work()


@pytest.mark.parametrize("suffix", COMPRESSIONS)
def test_ingest_of_files(bigtable: tuple[str, str], prefix: str, tmp_path: Path, suffix: str) -> None:
    """The work is the bytes of the files as they are stored."""
    store = AnyStore.create(bigtable, prefix, "heroic")
    content = COMPRESSIONS[suffix](b"".join(map(put, POINTS)))
    path = tmp_path / f"points.txt{suffix}"
    path.write_bytes(content)
    ingest(tmp_path, *store.flags, "--format=opentsdb-text", "--input", path)
    assert work() == len(content)


def test_replay(bigtable: tuple[str, str], prefix: str, tmp_path: Path) -> None:
    """The work is the bytes of all files of dead letters."""
    flags = (*AnyStore.create(bigtable, prefix, "opentsdb").flags, "--format=opentsdb-text")
    for metric in (b"a", b"b"):
        path = write_file(tmp_path / "points.txt", [b"put %s 1767225600 1 host=h\n" % metric])
        assert ingest(tmp_path, *flags, "--input", path).letters
    files = list(tmp_path.glob("letters-*/dead-*.jsonl"))
    letters = ("--dead-letters", tmp_path / "again")
    ran = timebeam("replay", *flags, str(tmp_path / "letters-*/dead-*"), *letters)
    assert ran.code == 1  # all is rejected again
    assert (len(files), work()) == (2, sum(path.stat().st_size for path in files))


def test_the_share_of_a_compressed_file_grows_with_its_blocks(tmp_path: Path) -> None:
    lines = [b"put m %d %d host=h%d\n" % (1_767_225_600 + n, n * 7919 % 104729, n) for n in range(500_000)]
    path = write_file(tmp_path / "points.txt.gz", lines)
    (span,) = spans(match([str(path)])[0])
    metrics.totals.clear()
    amounts = [metrics.totals[metrics.WORK_DONE] for _ in blocks(span)]
    assert len(amounts) > 3
    assert amounts == sorted(set(amounts))
    assert metrics.totals[metrics.WORK_DONE] == path.stat().st_size


@pytest.mark.parametrize("suffix", COMPRESSIONS)
def test_the_share_of_dead_letters_grows_to_the_size_of_their_file(suffix: str, tmp_path: Path) -> None:
    chance = random.Random(1)
    text = b"".join(b"%d\n" % chance.getrandbits(2000) for _ in range(6000))
    path = tmp_path / f"dead.jsonl{suffix}"
    path.write_bytes(COMPRESSIONS[suffix](text))
    metrics.totals.clear()
    amounts = [metrics.totals[metrics.WORK_DONE] for _ in replay._lines(str(path))]
    assert len(amounts) == 6000
    assert amounts[500] < path.stat().st_size
    assert metrics.totals[metrics.WORK_DONE] == path.stat().st_size


def test_jobs_over_the_tables_of_opentsdb(bigtable: tuple[str, str], prefix: str, tmp_path: Path) -> None:
    forest = Forest.create(bigtable, prefix, tmp_path)
    flags = (*forest.store.flags, "--auto-create-metrics", "--format=opentsdb-text")
    ingest(tmp_path, *flags, "--input", put_file(tmp_path / "points.txt", POINTS))
    assert run("meta", "sync", *forest.store.flags) > 0
    rule = {"level": 0, "order": 0, "type": "METRIC"}
    forest.create_tree({"name": "T", "enabled": True, "rules": [rule]})
    assert run("trees", "sync", *forest.store.flags, "--dead-letters", tmp_path / "dead") > 0
    assert run("compact", *forest.store.flags, "--day=2026-01-01") > 0


def test_copy_and_reindex(bigtable: tuple[str, str], prefix: str, tmp_path: Path) -> None:
    source = AnyStore.create(bigtable, prefix, "heroic")
    sink = AnyStore.create(bigtable, f"{prefix}to-", "kairosdb-legacy")
    path = put_file(tmp_path / "points.txt", POINTS)
    ingest(tmp_path, *source.flags, "--format=opentsdb-text", "--input", path)
    both = ("--from=heroic", "--to=kairosdb", *source.layout_flags(), *sink.layout_flags("to_"))
    assert run("copy", *source.place, *both, "--start=2026-01-01", "--dead-letters", tmp_path / "dead") > 0
    assert run("reindex", *source.flags) > 0


def test_declared_rollups(bigtable: tuple[str, str], prefix: str, tmp_path: Path) -> None:
    place = Place(bigtable, prefix, tmp_path)
    yesterday = datetime.datetime.now(datetime.UTC) - datetime.timedelta(1)
    time_ms = int(yesterday.timestamp() * 1000)
    place.send([{"METER": 7, "TS": time_ms, "REV": 0, "READING": "1", "SITE": "a", "KIND": "k", "WEIGHT": 2}])
    assert json.loads(place.rollup("--summary=json").out.splitlines()[-1])["rows_read"] >= 1
    assert work() > 0
