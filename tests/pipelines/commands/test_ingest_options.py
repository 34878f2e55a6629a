"""What `timebeam ingest` says and does before it starts, instead of starting, and on a dry run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.commands import ingest, timebeam, unless_given
from tests.support.model import content
from tests.support.points import put, put_file, random_points, stored, write_file
from tests.support.stored import Store
from timebeam.pipelines.local.emulator import HOST_VARIABLE

TEXT = ("--format=opentsdb-text", "--auto-create-metrics")


@pytest.fixture
def store(bigtable: tuple[str, str], prefix: str) -> Store:
    return Store.create(bigtable, prefix)


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["--nonsense"], 2, "unknown option --nonsense"),
        (["--app-profile=x", "--bigtable-writer=beam"], 2, "leave out --bigtable-writer beam"),
        (["--packing=best"], 2, "--packing"),
        (["--set=salt_width=9"], 2, "salt_width must be from 0 to 8"),
        (["--format=xml"], 2, "--format"),
        (["--dry-run=maybe"], 2, "neither true nor false"),
        (["--table-prefix=other-"], 1, "timebeam tables create --layout opentsdb --table-prefix other-"),
        (["--input", "nowhere/*.txt"], 1, "no file matches nowhere/*.txt"),
        (["--input", "nothing://bucket/a"], 1, "nothing://bucket/a"),
    ],
)
def test_what_cannot_be_done_is_said(
    store: Store, tmp_path: Path, arguments: list[str], code: int, text: str
) -> None:
    file = put_file(tmp_path / "a.txt", random_points(5))
    flags = unless_given(arguments, *store.flags, *TEXT)
    ran = timebeam("ingest", *flags, "--input", file, *arguments)
    assert ran.code == code
    assert text in ran.err
    assert ran.out == ""
    if code == 1:
        assert len(ran.err.splitlines()) == 1
        assert ran.err.startswith("timebeam ingest: ")
    assert (store.cells(), store.uid_cells()) == (set(), set())


def test_folders_are_passed_over(store: Store, tmp_path: Path) -> None:
    points = random_points(20)
    (tmp_path / "in" / "folder").mkdir(parents=True)
    put_file(tmp_path / "in" / "a.txt", points)
    ingest(tmp_path, *store.flags, *TEXT, "--input", tmp_path / "in" / "*")
    assert stored(store) == content(points)
    ran = timebeam("ingest", *store.flags, *TEXT, "--input", tmp_path / "in" / "folder")
    assert (ran.code, len(ran.err.splitlines())) == (1, 1)


def test_an_app_profile_is_fine_with_the_direct_writer(store: Store, tmp_path: Path) -> None:
    points = random_points(20)
    file = put_file(tmp_path / "a.txt", points)
    ingest(tmp_path, *store.flags, *TEXT, "--input", file, "--app-profile=x")
    assert stored(store) == content(points)


def test_an_emulator_that_does_not_answer(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = put_file(tmp_path / "a.txt", random_points(5))
    monkeypatch.setenv(HOST_VARIABLE, "localhost:1")
    ran = timebeam("ingest", *store.flags, *TEXT, "--input", file)
    assert (ran.code, len(ran.err.splitlines())) == (1, 1)
    assert "no Bigtable emulator answers at BIGTABLE_EMULATOR_HOST=localhost:1" in ran.err


def test_without_emulator_an_instance_must_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(HOST_VARIABLE, raising=False)
    ran = timebeam("ingest", "--layout=opentsdb", *TEXT, "--input", tmp_path / "a.txt")
    assert ran.code == 2
    assert "give --project and --instance" in ran.err


def test_uids_of_another_width_stop_the_ingest(store: Store, tmp_path: Path) -> None:
    """Nothing is written, whether the names come from the snapshot or are looked up."""
    file = put_file(tmp_path / "a.txt", random_points(20))
    ingest(tmp_path, *store.flags, *TEXT, "--input", file)
    before = store.cells(), store.uid_cells()
    for snapshot in ("--uid-snapshot-size=1000", "--uid-snapshot-size=0"):
        flags = ["--set=uid_width_tagk=2", snapshot, "--dead-letters", tmp_path / "dead"]
        ran = timebeam("ingest", *store.flags, *TEXT, "--input", file, *flags)
        assert ran.code == 1
        assert "timebeam ingest: tagk" in ran.err
        assert "set uid_width_tagk" in ran.err
    assert (store.cells(), store.uid_cells()) == before


def test_a_dry_run_counts_and_writes_nothing(store: Store, tmp_path: Path) -> None:
    lines = [put(point) for point in random_points(100)]
    file = write_file(tmp_path / "a.txt", [*lines, b"put bad\n", lines[0]])
    arguments = [*store.flags, *TEXT, "--input", file]
    dry = ingest(tmp_path, *arguments, "--dry-run")
    assert (store.cells(), store.uid_cells()) == (set(), set())
    assert dry.summary["dry_run"] is True
    real = ingest(tmp_path, *arguments)
    counts = ["points_read", "points_duplicate", "points_stored", "rejected", "uids_assigned"]
    counts += ["rows", "cells", "bytes_written"]
    assert {key: dry.summary[key] for key in counts} == {key: real.summary[key] for key in counts}
    assert real.summary["points_stored"] == 100
    assert real.summary["rejected"] == {"bad-syntax": 1}
    assert [letter["payload"] for letter in dry.letters] == ["put bad"]
    ran = timebeam("ingest", *arguments, "--dry-run=true", "--dead-letters", tmp_path / "dead")
    assert ran.code == 0
    assert ran.out.startswith("nothing was written (dry run)\n")
    assert "points to store" in ran.out


def test_progress_is_said_on_standard_error(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("timebeam.pipelines.output.progress_and_summary._LINES_SECONDS", 0.001)
    file = put_file(tmp_path / "a.txt", random_points(100))
    ran = timebeam("ingest", *store.flags, *TEXT, "--input", file, "--summary=json")
    lines = ran.err.splitlines()
    progress = r" +\d+ s(, .* left)?: (working|.* (points|rows) read \(.*/s\), .* written, 0 rejected)"
    assert ran.code == 0
    assert lines
    assert [line for line in lines if not re.fullmatch(progress, line)] == []


def test_a_dry_run_knows_the_uids_there_are(store: Store, tmp_path: Path) -> None:
    file = put_file(tmp_path / "a.txt", random_points(50))
    ingest(tmp_path, *store.flags, *TEXT, "--input", file)
    before = store.cells(), store.uid_cells()
    dry = ingest(tmp_path, *store.flags, *TEXT, "--input", file, "--dry-run")
    assert dry.summary["uids_assigned"] == 0
    assert (store.cells(), store.uid_cells()) == before


def test_dead_letters_of_two_runs_stay_apart(store: Store, tmp_path: Path) -> None:
    """Also of runs within the same second."""
    for run in range(3):
        file = write_file(tmp_path / "a.txt", [b"put bad %d\n" % run])
        ran = timebeam("ingest", *store.flags, *TEXT, "--input", file, "--dead-letters", tmp_path / "dead")
        assert ran.code == 1
        assert ran.err == "nothing was stored: everything was rejected: see the dead letters\n"
    texts = [path.read_text() for path in tmp_path.glob("dead-*.jsonl")]
    assert sorted(text.count(f"put bad {run}") for text in texts for run in range(3)) == [0] * 6 + [1] * 3
