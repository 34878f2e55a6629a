"""Edits of annotations when answers of compare-and-set get lost, or calls fail."""

from __future__ import annotations

import json

import grpc
import pytest

from tests.support.fault_proxy import AFTER, BEFORE, COMPARE_AND_SET, Fault, faulty, nth
from tests.support.inputs.annotations import notes
from tests.support.points import BASE_S, FIRST_MS
from tests.support.stored import Store
from timebeam.schema.bits.reasons import Reason
from timebeam.schema.core.annotations import Annotation
from timebeam.schema.formats import Message, message_format
from timebeam.schema.stores.opentsdb.columns import annotation_cells as cells
from timebeam.transforms.opentsdb.edit_annotations import AddressedEdit, store

NOTES = [{"startTime": BASE_S, "description": "a"}, {"startTime": BASE_S, "notes": "b"}]
DELETE = {"startTime": BASE_S, "method": "DELETE"}


@pytest.fixture
def tables(bigtable: tuple[str, str], prefix: str) -> Store:
    return Store.create(bigtable, prefix)


def carried_out(tables: Store, *requests: dict[str, object]) -> list[Reason]:
    """Carries out requests one after the other; why they were rejected."""
    rejected = []
    at = cells.place(tables.layout.options, b"", BASE_S)
    for number, request in enumerate(requests):
        message = Message(json.dumps(request).encode(), FIRST_MS + number)
        (edit,) = message_format("opentsdb-annotations").parse(message).annotations
        rejected += store(tables.target, tables.layout, {at: [AddressedEdit("", edit)]})
    return [one.reason for one in rejected]


@pytest.mark.parametrize("when", [BEFORE, AFTER])
@pytest.mark.parametrize("code", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.ABORTED])
def test_lost_answers_change_nothing(tables: Store, emulator: str, when: str, code: grpc.StatusCode) -> None:
    with faulty(emulator, nth(COMPARE_AND_SET, (1, 3), Fault(code, when))):
        assert carried_out(tables, *NOTES) == []
    place = cells.place(tables.layout.options, b"", BASE_S)
    expected = (*place, FIRST_MS + 1, Annotation("", BASE_S, 0, "a", "b").stored())
    assert notes(tables) == {expected}
    with faulty(emulator, nth(COMPARE_AND_SET, (1,), Fault(code, when))):
        assert carried_out(tables, *NOTES, DELETE) == []
    assert notes(tables) == set()


def test_an_annotation_that_bigtable_rejects_is_a_dead_letter(tables: Store, emulator: str) -> None:
    fault = Fault(grpc.StatusCode.INVALID_ARGUMENT, BEFORE)
    with faulty(emulator, nth(COMPARE_AND_SET, (1,), fault)):
        assert carried_out(tables, *NOTES) == [Reason.WRITE_REFUSED]
    ((*_, value),) = notes(tables)
    assert json.loads(value)["notes"] == "b"
