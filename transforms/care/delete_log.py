"""The log of a deletion: each row before it changes, and whether the run has begun, or is done.

| file | |
|---|---|
| `LOG-UUID.jsonl` | a line for each row, of one request |
| `LOG-begun.json` | cells are deleted from now on; a later run completes it |
| `LOG-done.json` | the same file, renamed: all is deleted |
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from apache_beam.io.filesystems import FileSystems

from timebeam.schema.bits.times import HOUR_S
from timebeam.schema.core.points import Series
from timebeam.schema.core.row_deletion import RowDeletion

_BEGUN, _DONE, _ROWS = "-begun.json", "-done.json", "-*.jsonl"
_ENDED_S = 12 * HOUR_S
"""A run whose log has not grown for so long has ended: it writes far more often, if it deletes anything."""


def write_rows(log: str, removals: Iterable[tuple[RowDeletion, Series]]) -> None:
    """Writes what is about to be deleted from rows."""
    with FileSystems.create(f"{log}-{uuid.uuid4().hex}.jsonl") as file:
        for removal, series in removals:
            file.write(_line(removal, series))


def _line(removal: RowDeletion, series: Series) -> bytes:
    """A row of the log: what is deleted from it."""
    mutation = removal.mutation
    line = {
        "table": mutation.table,
        "row": mutation.key.hex(),
        "series": str(series),
        "cells": len(removal.old),
        "rewritten": len(mutation.cells),
        "points": removal.points,
        "bytes": removal.bytes,
    }
    return json.dumps(line, ensure_ascii=False).encode() + b"\n"


def log_files(start: str, rest: str) -> dict[str, float]:
    """The files that begin with `start` and continue as the pattern `rest`, sorted: (path, change in s).

    Beam would read all folders below a local one, and take `[` in its name as a pattern.
    """
    files = {}
    if "://" in start:
        (matched,) = FileSystems.match([start + rest])
        files = {file.path: file.last_updated_in_seconds for file in matched.metadata_list}
    else:
        for path in glob.glob(glob.escape(start) + rest):
            with contextlib.suppress(FileNotFoundError):  # another run has just renamed it
                files[path] = os.path.getmtime(path)
    return dict(sorted(files.items()))


def logged_rows(log: str) -> Iterator[tuple[str, bytes]]:
    """(table, key) of the rows in the files of a log; a line that was not written in full is left out."""
    for path in log_files(log, _ROWS):
        with FileSystems.open(path) as lines:
            for line in lines:
                with contextlib.suppress(ValueError):
                    entry = json.loads(line)
                    yield entry["table"], bytes.fromhex(entry["row"])


def interrupted_logs(start: str, rest: str) -> Sequence[str]:
    """The logs that begin with `start`, continue as the pattern `rest`, and are begun, but not done."""
    return [path.removesuffix(_BEGUN) for path in log_files(start, rest + _BEGUN)]


def used_s(log: str) -> int | None:
    """When a run was done, in seconds since 1970; None if there is none."""
    path = log + _DONE
    return int(FileSystems.last_updated(path)) if FileSystems.exists(path) else None


def write_begun(log: str, content: Mapping[str, Any]) -> None:
    """Says that cells are deleted from now on."""
    with FileSystems.create(log + _BEGUN) as file:
        file.write(json.dumps(content).encode() + b"\n")


def write_done(log: str, completed: Iterable[str]) -> None:
    """Says that a run is done, and those runs that it has completed, unless one may still be at work.

    A later run completes that one again.
    """
    for each in {log, *filter(_has_ended, completed)}:
        if FileSystems.exists(each + _BEGUN):  # not if the cells are not those of the dry run
            FileSystems.rename([each + _BEGUN], [each + _DONE])


def _has_ended(log: str) -> bool:
    """Whether no file of a log is new."""
    changes_s = [*log_files(log, _ROWS).values(), *log_files(log, _BEGUN).values()]
    return max(changes_s, default=0) <= time.time() - _ENDED_S
