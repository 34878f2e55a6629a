"""Annotations of two series in a real Bigtable, for tests: sent as a user sends them, and read back."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support.commands import Ingested, Ran, ingest, timebeam
from tests.support.points import BASE_S, FIRST_MS
from tests.support.stored import Store
from timebeam.schema.stores.opentsdb.columns import annotation_cells as cells

A, B = "000001000001000001", "000001000001000002"
"""The TSUIDs of sys.load{host=a} and of sys.load{host=b}."""


def load(store: Store, folder: Path) -> Store:
    """Points of the two series, in two hours."""
    path = folder / "points.txt"
    lines = [f"put sys.load {BASE_S + 60 * i} {i} host={host}\n" for host in "ab" for i in range(0, 70, 10)]
    path.write_text("".join(lines))
    os.utime(path, (FIRST_MS / 1000, FIRST_MS / 1000))
    for host in "ab":
        store.set_uid("tagv", "id", host.encode(), bytes((0, 0, 1 + "ab".index(host))))
        store.set_uid("tagv", "name", bytes((0, 0, 1 + "ab".index(host))), host.encode())
    store.set_counter("tagv", 2)
    ingest(folder, *store.flags, "--format=opentsdb-text", "--auto-create-metrics", "--input", path)
    return store


def send(
    store: Store, folder: Path, *objects: Any, arrival_ms: int = FIRST_MS, flags: Sequence[str] = ()
) -> Ingested:
    """Ingests requests, a line each."""
    path = folder / "annotations.json"
    path.write_text("".join(json.dumps(one, ensure_ascii=False) + "\n" for one in objects), "utf-8")
    os.utime(path, (arrival_ms / 1000, arrival_ms / 1000))
    return ingest(folder, *store.flags, *flags, "--format=opentsdb-annotations", "--input", path)


def notes(store: Store) -> set[tuple[bytes, bytes, int, bytes]]:
    """The annotations' cells."""
    return {cell for cell in store.cells() if cells.is_annotation(cell[1])}


def query(store: Store, *flags: str, start: int = BASE_S, end: int = BASE_S + 7200) -> Ran:
    """A query, of both hours by default, that must succeed; times in s."""
    ran = timebeam("query", "sys.load", *store.flags, f"--start={start}", f"--end={end}", *flags)
    assert ran.code == 0, ran.err
    return ran
