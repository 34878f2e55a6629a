"""Commands of `timebeam`, run in this process, with what they printed."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from timebeam.pipelines import cli


class Ran(NamedTuple):
    """What a command left: its exit code, standard output and standard error."""

    code: int
    out: str
    err: str


def timebeam(*arguments: str | Path) -> Ran:
    """Runs a command as the console script does."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = cli.main([str(argument) for argument in arguments])
        except SystemExit as stop:  # how argparse ends a program
            code = int(stop.code or 0)
    return Ran(code, out.getvalue(), err.getvalue())


def code_of(summary: Mapping[str, Any]) -> int:
    """The exit code of an ingest or replay without `--max-rejected`: 1 if it rejected all that it read."""
    figures = ("rows", "points_stored", "points_duplicate", "annotations_written", "annotations_deleted")
    return int(bool(summary["rejected"]) and not any(summary[name] for name in figures))


class Ingested(NamedTuple):
    """What an ingest said and rejected."""

    summary: dict[str, Any]
    letters: list[dict[str, Any]]


def ingest(folder: Path, *arguments: str | Path) -> Ingested:
    """Runs an ingest that must succeed; its dead letters go to a new folder within `folder`."""
    letters = folder / f"letters-{len(list(folder.iterdir()))}"
    letters.mkdir()
    ran = timebeam("ingest", *arguments, "--dead-letters", letters / "dead", "--summary", "json")
    summary = json.loads(ran.out)
    assert ran.code == code_of(summary), ran.err
    files = sorted(letters.iterdir())
    assert summary["dead_letters"] == [str(path) for path in files]
    return Ingested(
        summary,
        [json.loads(line) for path in files for line in path.read_text("utf-8").splitlines()],
    )


def unless_given(flags: Sequence[str | Path], *defaults: str | Path) -> list[str]:
    """The options of `defaults`, each as --NAME=VALUE, whose names are not among `flags`."""
    given = {str(flag).partition("=")[0] for flag in flags}
    return [str(default) for default in defaults if str(default).partition("=")[0] not in given]
