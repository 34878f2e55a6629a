"""What is wrong with the options of a layout is said before any work starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.any_store import VARIANTS, AnyStore
from tests.support.commands import timebeam
from tests.support.layout_words import layout_words
from tests.support.points import put_file, random_points
from timebeam.pipelines.local.emulator import HOST_VARIABLE


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A few points."""
    return put_file(tmp_path / "a.txt", random_points(5))


@pytest.mark.parametrize("command", ["ingest", "replay"])
def test_a_layout_that_can_only_be_read_is_not_written(
    file: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even Bigtable is asked: nothing listens there."""
    monkeypatch.setenv(HOST_VARIABLE, "localhost:1")
    source = ["--input", file] if command == "ingest" else [file]
    ran = timebeam(command, "--layout=kairosdb", "--set=row_spec=seconds", "--format=opentsdb-text", *source)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(
        f"timebeam {command}: layout kairosdb: row_spec seconds is for reading only: "
        "write with legacy or milliseconds\n"
    )


def test_a_layout_that_can_only_be_read_is_read(bigtable: tuple[str, str], prefix: str) -> None:
    store = AnyStore.create(bigtable, prefix, "kairosdb-legacy")
    flags = [flag for flag in store.flags if not flag.startswith("--set=row_spec")]
    ran = timebeam("check", *flags, "--set=row_spec=seconds")
    assert (ran.code, ran.err) == (0, "")


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_command_that_creates_missing_tables_names_every_option(
    bigtable: tuple[str, str], prefix: str, file: Path, variant: str
) -> None:
    """Run as it is told, it makes the tables that were missing."""
    name, options = VARIANTS[variant]
    place = [f"--project={bigtable[0]}", f"--instance={bigtable[1]}"]
    flags = [f"--layout={name}", f"--table-prefix={prefix}", *layout_words(options)]
    ingest = ("ingest", *place, *flags, "--auto-create-metrics", "--format=opentsdb-text", "--input", file)
    ran = timebeam(*ingest)
    assert ran.code == 1
    command, *words = ran.err.splitlines()[-1].partition("timebeam tables")[2].split()
    assert command == "create"
    assert timebeam("tables", "create", *place, *words).code == 0
    ran = timebeam(*ingest)
    assert (ran.code, ran.err) == (0, "")


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--layout=kairosdb", "--set=retention=7,x"], "retention must be days"),
        (
            ["--layout=kairosdb", "--set=retention=7", "--retention-class=90"],
            "retention_class must be one of 0,7",
        ),
        (["--layout=heroic", "--packing=compacted"], "layout heroic has no packing compacted: choose points"),
    ],
)
def test_options_that_make_no_sense(file: Path, flags: list[str], text: str) -> None:
    ran = timebeam("ingest", *flags, "--format=opentsdb-text", "--input", file)
    assert (ran.code, text in ran.err) == (2, True), ran.err
