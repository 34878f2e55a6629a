"""A stored state: the tables of an instance and files beside them, as an earlier version left them.

| member of the JSON document | content |
|---|---|
| `tables` | by name: its families, with the number of versions that they keep |
| `cells` | table, row key, family, qualifier, timestamp in ms, value; bytes in base64 |
| `files` | by name: the bytes in base64, and the modification time in s |
| `answers` | by the name of a step: what the step answered when the state was recorded |
"""

from __future__ import annotations

import base64
import gzip
import json
import os
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.commands import timebeam
from timebeam.schema.core.rows import Cell, Row, TableSpec
from timebeam.transforms.bigtable.create_tables import admin_instance, create_tables
from timebeam.transforms.bigtable.existing_tables import table_names
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.bigtable.write_rows import write_all
from timebeam.transforms.read.table_reader import scan_table

FOLDER = Path(__file__).parents[1] / "golden" / "states"
Document = dict[str, Any]


def _text(value: bytes) -> str:
    return base64.b64encode(value).decode()


def state_of(target: Target, folder: Path) -> Document:
    """The tables of an instance and the files of a folder."""
    cells = [
        [name, _text(row.key), cell.family, _text(cell.qualifier), cell.timestamp_ms, _text(cell.value)]
        for name in sorted(table_names(target))
        for row in scan_table(target, name)
        for cell in row.cells
    ]
    instance = admin_instance(target)
    tables = {name: sorted(instance.table(name).list_column_families()) for name in table_names(target)}
    files = {
        path.name: [_text(path.read_bytes()), int(path.stat().st_mtime)]
        for path in sorted(folder.iterdir())
        if path.is_file()
    }
    return {"tables": dict(sorted(tables.items())), "cells": cells, "files": files, "answers": {}}


def save(state: Document, name: str) -> None:
    """Writes a state; the same bytes for the same state."""
    text = json.dumps(state, indent=0, sort_keys=True, ensure_ascii=False)
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"{name}.json.gz").write_bytes(gzip.compress(text.encode(), mtime=0))


def load(name: str) -> Document:
    """Reads a state."""
    return dict(json.loads(gzip.decompress((FOLDER / f"{name}.json.gz").read_bytes())))


def restore(state: Document, target: Target, folder: Path) -> None:
    """Makes the tables and files of a state, in an instance and a folder without any."""
    specs = [
        TableSpec(name, dict.fromkeys(families, 1), holds_points=False)
        for name, families in state["tables"].items()
    ]
    list(create_tables(target, specs, dry_run=False))
    rows: dict[tuple[str, str], list[Cell]] = {}
    for table, key, family, qualifier, timestamp_ms, value in state["cells"]:
        cell = Cell(family, base64.b64decode(qualifier), timestamp_ms, base64.b64decode(value))
        rows.setdefault((table, key), []).append(cell)
    for table in state["tables"]:
        write_all(
            target,
            table,
            [
                Row(table, base64.b64decode(key), cells)
                for (name, key), cells in rows.items()
                if name == table
            ],
        )
    for name, (content, seconds) in state["files"].items():
        path = folder / name
        path.write_bytes(base64.b64decode(content))
        os.utime(path, (seconds, seconds))


class Step(NamedTuple):
    """A command on a state, and whether its standard output is an answer that stays."""

    name: str
    arguments: tuple[str, ...]
    is_answer: bool = False


def answer(step: Step, target: Target, folder: Path) -> Any:
    """Runs a step; its exit code, and what it printed, if that is an answer.

    `{folder}` in its arguments is the folder of the files. Answers are JSON, with sorted members.
    """
    place = [f"--project={target.project}", f"--instance={target.instance}"]
    ran = timebeam(*(word.replace("{folder}", str(folder)) for word in step.arguments), *place)
    assert ran.code in (0, 1), (step, ran)
    if not step.is_answer:
        return {"code": ran.code}
    return {"code": ran.code, "answer": sorted(json.loads(ran.out), key=lambda each: json.dumps(each))}
