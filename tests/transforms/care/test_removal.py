"""One row without the points of a range: the others as they were, and what arrives meanwhile stays.

Points are read by the plain loops of `plain_opentsdb`, never by the code under test.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.schema.stores.plain_opentsdb import Element
from tests.support.budget import examples
from tests.support.inputs.opentsdb_columns import (
    KEY,
    apply,
    columns,
    content,
    elements,
    is_points,
    newest,
    put,
    qualifier_of,
    rows,
    versions,
)
from timebeam.schema.core.row_deletion import DeleteRange, RowDeletion, remove_cells
from timebeam.schema.core.rows import Cell, Row
from timebeam.schema.stores.opentsdb.columns.annotation_cells import remove_annotations
from timebeam.schema.stores.opentsdb.columns.decode_row import Winner
from timebeam.schema.stores.opentsdb.columns.rewrite_row import remove_points
from timebeam.schema.stores.opentsdb.options import OpenTsdbOptions
from timebeam.transforms.care.delete_from_tables import log_files, logged_rows

NEVER = 1 << 40
BASE_MS = 1_356_998_400_000
RANGES = st.tuples(st.integers(-1, 5000), st.integers(-1, 100_000)).map(sorted)


def removal(row: Row, first_ms: int, last_ms: int, newest_ms: int = NEVER) -> RowDeletion | None:
    """The deletion of the points at these offsets."""
    deleted = DeleteRange(BASE_MS + first_ms, BASE_MS + last_ms, newest_ms)
    return remove_points(row, BASE_MS, Winner.NEWEST, deleted)


def row_of(*cells: tuple[int, str, str]) -> Row:
    """A row of (timestamp in ms, qualifier and value in hex)."""
    return Row("tsdb", KEY, [Cell("t", bytes.fromhex(q), at, bytes.fromhex(v)) for at, q, v in cells])


def test_the_files_of_a_log_are_those_of_its_folder(tmp_path: Path) -> None:
    """Whatever its name is; Beam's pattern takes a minute in the folder of the whole machine."""
    folder = tmp_path / "[logs]"
    (folder / "log-b").mkdir(parents=True)
    for name in ("log-2.jsonl", "log-1.jsonl", "log-1.json", "other-1.jsonl", "log-b/1.jsonl"):
        (folder / name).write_text('{"table": "t", "row": "00"}\n')
    assert list(log_files(f"{folder}/log", "-*.jsonl")) == [
        f"{folder}/log-{number}.jsonl" for number in (1, 2)
    ]
    assert list(logged_rows(f"{folder}/log")) == [("t", b"\0")] * 2
    assert list(log_files(f"{folder}/log-1.json", "")) == [f"{folder}/log-1.json"]


def test_a_compacted_column_is_rewritten_and_a_plain_one_deleted() -> None:
    row = row_of((10, "000000100020", "01020300"), (20, "0010", "09"), (30, "0030", "07"))
    made = removal(row, 1000, 2000)
    assert made is not None
    assert made.points == 2
    assert [(cell.timestamp_ms, cell.qualifier.hex(), cell.value.hex()) for cell in made.mutation.cells] == [
        (10, "0000", "01")
    ]
    deleted = [(deletion.qualifier.hex(), deletion.before_ms) for deletion in made.mutation.deleted]
    assert deleted == [("000000100020", 11), ("0010", 21)]


def test_an_append_column_keeps_its_qualifier_and_timestamp() -> None:
    made = removal(row_of((10, "050000", "000001001002002003")), 1000, 1000)
    assert made is not None
    (cell,) = made.mutation.cells
    assert (cell.timestamp_ms, cell.qualifier.hex(), cell.value.hex()) == (10, "050000", "000001002003")


def test_cells_behind_the_cut_off_stay() -> None:
    row = row_of((10, "00000010", "010200"), (20, "0010", "09"))
    made = removal(row, 0, 5000, 19)
    assert made is not None
    assert (made.points, made.mutation.cells) == (2, [])
    held = versions(row)
    apply(held, made.mutation)
    assert content(newest(held)) == {1000: ("int", 9)}
    assert removal(row, 0, 5000, 9) is None


def test_histograms_of_the_range_go_and_annotations_stay() -> None:
    row = row_of((10, "060001", "0001"), (10, "0600000fa0", "0002"), (10, "010001", "7b7d"))
    made = removal(row, 1000, 1000)
    assert made is not None
    assert [cell.qualifier.hex() for cell in made.old] == ["060001"]
    notes = remove_annotations(OpenTsdbOptions(), row, DeleteRange(BASE_MS, BASE_MS + 1000, NEVER))
    assert notes is not None
    assert [cell.qualifier.hex() for cell in notes.old] == ["010001"]


def test_a_corrupt_cell_in_the_way_of_the_rest_is_rejected() -> None:
    row = row_of((10, "000000100020", "01020300"), (20, "00000010", "01020304"))
    with pytest.raises(ValueError, match="corrupt cell is in the way"):
        removal(row, 2000, 2000)


def test_the_checksum_changes_with_every_field_of_a_cell() -> None:
    cells = [
        (10, "0010", "09"),
        (11, "0010", "09"),
        (10, "0020", "09"),
        (10, "0010", "08"),
        (10, "0011", "0009"),
    ]
    found = [removal(row_of(cell), 0, 5000) for cell in cells]
    assert len({each.checksum for each in found if each is not None}) == len(cells)


def test_a_rewritten_column_still_wins_over_one_of_its_timestamp() -> None:
    """The compacted column is read last; what stays of it has a qualifier that is read first."""
    row = row_of((10, "0011", "0000"), (10, "f00000000010", "000000"))
    made = removal(row, 0, 0)
    assert made is not None
    assert [(cell.qualifier.hex(), cell.value.hex()) for cell in made.mutation.cells] == [("0010", "00")]
    assert [cell.qualifier.hex() for cell in made.old] == ["f00000000010", "0011"]


@given(rows(), RANGES)
@examples(150)
def test_points_outside_stay_and_points_inside_go(row: Row, offsets: list[int]) -> None:
    first_ms, last_ms = offsets
    held, before = versions(row), content(row)
    try:
        made = removal(row, first_ms, last_ms)
    except ValueError:  # a corrupt cell is in the way
        return
    apply(held, made.mutation if made else None)
    after = newest(held)
    expected = {offset: value for offset, value in before.items() if not first_ms <= offset <= last_ms}
    assert content(after) == expected
    others = [cell for cell in row.cells if not is_points(cell) and cell.qualifier[0] != 6]
    assert [cell for cell in after.cells if not is_points(cell) and cell.qualifier[0] != 6] == others
    assert removal(after, first_ms, last_ms) is None
    assert (made is not None) >= (len(expected) < len(before))


@given(rows(corrupt=False), RANGES, st.lists(columns(), min_size=1, max_size=3, unique_by=lambda c: c[0]))
@examples(100)
def test_what_is_written_meanwhile_stays(
    row: Row, offsets: list[int], late: list[tuple[bytes, bytes]]
) -> None:
    """Each point that is stored between the read and the deletion is read afterwards."""
    first_ms, last_ms = offsets
    held = versions(row)
    made = removal(row, first_ms, last_ms)
    arrived = [Cell("t", qualifier, 4, value) for qualifier, value in late if len(qualifier) != 3]
    put(held, *arrived)
    apply(held, made.mutation if made else None)
    before = {offset: value for offset, value in content(row).items() if not first_ms <= offset <= last_ms}
    assert content(newest(held)) == before | content(row._replace(cells=arrived))


@given(rows(corrupt=False), RANGES, elements())
def test_an_append_meanwhile_stays(row: Row, offsets: list[int], late: Element) -> None:
    """A TSD's append makes a newer version of all points of the column: nothing is lost, and these stay."""
    held = versions(row)
    column = held.setdefault(("t", b"\x05\x00\x00"), {})
    made = removal(row, *offsets)
    column[9] = (column[max(column)] if column else b"") + qualifier_of(late) + late.value
    grown = content(newest({("t", b"\x05\x00\x00"): {9: column[9]}}))
    apply(held, made.mutation if made else None)
    assert grown.items() <= content(newest(held)).items()


def test_cells_of_a_point_each() -> None:
    row = row_of((10, "01", ""), (20, "02", ""), (10, "03", ""))
    made = remove_cells(row, np.array([5, 6, -1]), DeleteRange(0, 100, 15))
    assert made is not None
    assert (made.points, [cell.qualifier for cell in made.old]) == (1, [b"\x01"])
    assert remove_cells(row, np.array([5, 6, -1]), DeleteRange(7, 100, 15)) is None
