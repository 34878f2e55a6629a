"""What a real TSD stored and answered for annotations against what is made of the same requests here."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.golden.cases import Case, cases, units
from timebeam.schema.core.annotations import NO_CELL, Annotation, AnnotationState, after, as_ms
from timebeam.schema.core.rows import Cell, Row
from timebeam.schema.formats import message_format
from timebeam.schema.formats.base import Message
from timebeam.schema.stores.opentsdb.columns import annotation_cells as cells
from timebeam.schema.stores.opentsdb.options import OpenTsdbOptions

OPTIONS = OpenTsdbOptions()


def requests(case: Case) -> list[dict[str, Any]]:
    """The steps of a case that edit annotations."""
    return [step for step in case.steps if step.get("http", ["", ""])[1] == "/api/annotation"]


def stored(case: Case) -> dict[tuple[bytes, bytes], bytes]:
    """The annotations' cells of a case."""
    return {(key, column): value for key, column, value in case.cells if cells.is_annotation(column)}


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in cases("annotations")])
def test_requests_become_the_cells_and_answers_of_a_tsd(case: Case) -> None:
    states: dict[cells.CellAddress, AnnotationState] = {}
    for arrival_ms, step in enumerate(requests(case)):
        body = json.dumps(step["http"][2]).encode()
        parsed = message_format("opentsdb-annotations").parse(Message(body, arrival_ms))
        (edit,) = parsed.annotations
        assert not parsed.rejected
        tsuid = cells.check_tsuid(OPTIONS, edit.tsuid) if edit.tsuid else b""
        place = cells.place(OPTIONS, tsuid, edit.start)
        states[place] = after(states.get(place, NO_CELL), [edit], tsuid.hex())
        note = states[place].note
        assert note is not None
        assert note.shown() == json.dumps(step["answer"], separators=(",", ":"))
    found = {tuple(place): state.note.stored() for place, state in states.items() if state.note}
    assert found == stored(case)
    assert found


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in cases("annotations")])
def test_the_cells_of_a_tsd_are_read(case: Case) -> None:
    answers = {step["answer"]["startTime"]: step["answer"] for step in requests(case)}
    shown = {}
    for (key, column), value in stored(case).items():
        row = Row("tsdb", key, [Cell("t", column, 1, value)])
        (found,) = cells.read_annotations(OPTIONS, row)
        assert found.corruption == ""
        assert found.note is not None
        assert found.start_ms == found.note.start_ms
        shown[found.note.start] = json.loads(found.note.shown())
        assert found.note.stored() == found.cell.value
    assert shown == answers


@pytest.mark.parametrize(
    "vector", [vector for vector in units("annotation_key") if "error" not in vector["expect"]]
)
def test_keys_of_opentsdbs_unit_tests(vector: dict[str, Any]) -> None:
    inputs, expected = vector["input"], vector["expect"]
    options = OpenTsdbOptions(salt_width=inputs.get("salt_width", 0))
    tsuid = bytes.fromhex(inputs["tsuid_hex"])
    place = cells.place(options, tsuid, inputs["start_time"])
    assert place == (bytes.fromhex(expected["row_key_hex"]), bytes.fromhex(expected["qualifier_hex"]))


@pytest.mark.parametrize(
    ("start", "column"),
    [
        (1388450562, "010A02"),
        (1388450562500, "01002719C4"),
        (1388450562000, "010A02"),
        (1292148123, "01007B"),
    ],
)
def test_columns_of_the_specification(start: int, column: str) -> None:
    assert cells.qualifier(start) == bytes.fromhex(column)
    assert cells.offset_ms(bytes.fromhex(column)) == as_ms(start) % 3_600_000


@pytest.mark.parametrize(
    "start", [1, 4_294_967_295, 4_294_967_296, 4_294_967_295_999, 1356999000, 1356999000000]
)
def test_earlier_versions_had_the_column_of_the_start(start: int) -> None:
    tsuid = "000001000001000001"
    former = cells.former_place(OPTIONS, bytes.fromhex(tsuid), start)
    assert cells.offset_ms(former.qualifier) == as_ms(start) % 3_600_000
    cell = Cell("t", former.qualifier, 1, Annotation(tsuid, start).stored())
    (read,) = cells.read_annotations(OPTIONS, Row("tsdb", former.key, [cell]))
    assert (read.corruption, read.start_ms) == ("", as_ms(start))
