"""Random declarations: the proof against the model of `random_tables`; all readings written and read.

declared.language.ambiguities               proved           not proved, or refuted by two records
random_tables.collision                     finds none       finds that these two share a cell
"""

from __future__ import annotations

import collections
import random
from collections.abc import Sequence
from typing import Any

import pytest
from memory_tables import MemoryTables
from plain_tables import key
from random_tables import (
    Layout,
    Reading,
    Record,
    collision,
    draw,
    line,
    map_levels,
    readings,
    records,
    slot_of,
    stamp_ms,
    step_fits,
    told_names,
    toml,
)

from timebeam.schema.core.rows import Row
from timebeam.schema.formats.base import Message
from timebeam.schema.stores.declared.audit_records import audit_rows
from timebeam.schema.stores.declared.declaration import TableLayout
from timebeam.schema.stores.declared.language.ambiguities import Ambiguity, ambiguities
from timebeam.schema.stores.declared.language.load_declaration import DeclarationError, load
from timebeam.schema.stores.declared.read_records import decode
from timebeam.schema.stores.declared.records import read_json
from timebeam.schema.stores.declared.write_records import layout_rows

SHORT, ALL = 60, 500
RECORDS = 150


def declarations(first: int, count: int) -> list[tuple[int, Layout, TableLayout]]:
    """Declarations of seeds from the first on, without those that are wrong for another reason."""
    found = []
    seed = first
    while len(found) < count:
        layout = draw(random.Random(seed))
        try:
            (loaded,) = load(toml(layout), f"seed {seed}", reading=True).layouts
        except DeclarationError:
            pass
        else:
            found.append((seed, layout, loaded))
        seed += 1
    return found


def compare(first: int, count: int) -> collections.Counter[str]:
    """Compares the proof of so many declarations with the model; counts what was found."""
    found: collections.Counter[str] = collections.Counter()
    for seed, layout, loaded in declarations(first, count):
        problems = list(ambiguities(loaded))
        some = records(random.Random(seed), layout, RECORDS)
        accepted, rows = written(loaded, some)
        found["records"] += len(some)
        found["accepted records"] += len(accepted)
        where = f"seed {seed}: {toml(layout)}"
        if problems:
            found["rejected declarations"] += 1
            for problem in problems:
                found[check_rejection(layout, loaded, problem, where)] += 1
            found["of these shown by random records"] += collision(layout, accepted) is not None
            with pytest.raises(DeclarationError):
                load(toml(layout), "t")
        else:
            found["proved declarations"] += 1
            pair = collision(layout, accepted)
            assert pair is None, (where, pair)
            found["readings"] += check_reading(layout, loaded, accepted, rows, where)
    return found


def written(loaded: TableLayout, some: Sequence[Record]) -> tuple[list[Record], list[Row]]:
    """The records that a table takes, and their rows."""
    batch, rejected = read_json(Message(b"\n".join(map(line, some)), 0))
    assert not rejected
    rows, rejections = layout_rows(loaded, batch)
    return [record for i, record in enumerate(some) if i not in rejections.by_record], rows


def check_rejection(layout: Layout, loaded: TableLayout, problem: Ambiguity, where: str) -> str:
    """Checks one complaint by the model; what it is."""
    if problem.path[-1] == "step":
        assert not step_fits(layout), where
        return "rejections: step"
    if problem.witness is None:
        assert "not proved" in problem.text, where
        tellers = [
            part for part in layout["key"] if "suffix" in part or ("of" in part and part["length"] < 20)
        ]
        if "is coarser than the bucket" in problem.text and layout["gc"]["max_versions"] > 1:
            tellers.append(layout["cell_time"])
        assert tellers, (where, problem)
        return "rejections: not proved"
    one, other = ({**record} for record in problem.witness)
    taken, _ = written(loaded, [one, other])
    assert len(taken) == 2, (where, problem)
    if "is coarser than the bucket" in problem.text and same_place(layout, one, other):
        return "rejections: with a witness"
    first = own_values(layout, one, 0)
    assert any(collision(layout, [first, own_values(layout, other, n)]) for n in range(1, 50)), (
        where,
        problem,
    )
    return "rejections: with a witness"


def same_place(layout: Layout, one: Record, other: Record) -> bool:
    """Whether two records of different buckets share a row of the model."""
    return key(layout, one) == key(layout, other)


def own_values(layout: Layout, record: Record, number: int) -> Record:
    """A record of a witness with other values in the columns that tell nothing apart."""
    free = {"V", "W", "R", "A", "Q", "TS"} - told_names(layout)
    changed: Record = {name: str(number) for name in free if name in record}
    if layout["gc"]["max_versions"] > 1 and layout["cell_time"] in ("event", "revision"):
        changed.pop("TS", None)
    if "TS" in changed:
        changed["TS"] = str(int(record["TS"]) + number)
    if "M" in record:
        entry = {"name": str(number)}
        changed["M"] = {"category": entry} if map_levels(layout) == 2 else entry
    return {**record, **changed}


def check_reading(
    layout: Layout, loaded: TableLayout, accepted: Sequence[Record], rows: Sequence[Row], where: str
) -> int:
    """Writes records, and finds each reading again, with the time of its step; how many there are."""
    tables = MemoryTables(rows)
    versions = layout["gc"]["max_versions"]
    newest: dict[Any, tuple[int, Record, Reading]] = {}
    for record in accepted:
        for reading in readings(layout, record, 0):
            if reading.of[0] is None:
                continue
            stamp = stamp_ms(layout, record, 0)
            if reading.place not in newest or newest[reading.place][0] <= stamp:
                newest[reading.place] = (stamp, record, reading)
    stored = list(tables.all("T"))
    findings = [str(finding) for finding in audit_rows(loaded, stored)]
    assert not findings, (where, findings[:2])
    if versions > 1:
        return len(newest)
    decoded = {row.key: decode(loaded, row) for row in stored}
    for (row_key, qualifier, _), (_, record, reading) in newest.items():
        matching = [back for back in decoded[row_key] if holds(back, reading, qualifier)]
        assert matching, (where, record, reading, decoded[row_key])
        if reading.field == "R":
            (back,) = matching
            check_back(layout, record, back, where)
    return len(newest)


def holds(back: dict[str, Any], reading: Reading, qualifier: bytes) -> bool:
    value = back.get(reading.field)
    if isinstance(value, dict):
        value = value.get(qualifier.decode())
    return str(value) == reading.value


def check_back(layout: Layout, record: Record, back: dict[str, Any], where: str) -> None:
    """The fields in key and qualifier, and the step of a reading that came back."""
    for part in layout["key"]:
        if "field" in part:
            text, found = record[part["field"]], back[part["field"]]
            if "case" in part:  # a fixed column may hold the text as it was
                text, found = text.lower(), found.lower()
            assert found == text, where
    qualifier = layout["columns"]["series"]["qualifier"]
    if "field" in qualifier:
        assert back["Q"] == record["Q"], where
    else:
        assert slot_of(layout, back["TS"]) == slot_of(layout, int(record["TS"])), (where, record, back)


def test_a_few_dozen_random_declarations() -> None:
    found = compare(0, SHORT)
    assert found["proved declarations"] >= 15
    assert found["rejected declarations"] >= 15
    assert found["readings"] > 500


@pytest.mark.long
def test_500_random_declarations() -> None:
    found = compare(10_000, ALL)
    print(dict(found))
    assert found["proved declarations"] > 150
    assert found["rejections: with a witness"] > 100
    assert found["of these shown by random records"] > 100
    assert found["accepted records"] > found["records"] / 4
