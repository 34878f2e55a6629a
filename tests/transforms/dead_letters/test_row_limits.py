"""Bigtable's limits: rows over them are rejected whole, rows of too many cells are split."""

from __future__ import annotations

from typing import Any

import apache_beam as beam
import pytest
from apache_beam.pvalue import TaggedOutput

from tests.support.inputs.rows import KEY, ROW_KEY, SERIES, START_MS, piece, row_of
from tests.support.processes.eager import eagerly
from tests.support.stored import Store
from timebeam.schema.bits.reasons import Reason
from timebeam.schema.core import contract, rows
from timebeam.schema.core.contract import pack_row
from timebeam.schema.core.point_fragments import Encoded, Packing, RowFragment
from timebeam.schema.core.points import PointBatch
from timebeam.schema.core.rejections import Stage
from timebeam.schema.core.rows import Cell, EncodedRow, Row
from timebeam.schema.stores.heroic.layout import Heroic
from timebeam.schema.stores.kairosdb.layout import KairosDb
from timebeam.schema.stores.opentsdb.layout import OpenTsdb
from timebeam.transforms.bigtable.mutation_bytes import plain_row
from timebeam.transforms.bigtable.write_rows import split_row
from timebeam.transforms.dead_letters import letter as limits
from timebeam.transforms.dead_letters.letter import over_limit
from timebeam.transforms.flow.steps import REJECTED
from timebeam.transforms.ingest import row_mutations
from timebeam.transforms.ingest.encode_group_pack import PackFn

Group = tuple[tuple[str, bytes], list[bytes]]
"""((table, row key), fragments)."""


def row(key: bytes = b"k", qualifier: bytes = b"q", timestamp_ms: int = 1, value: bytes = b"v") -> Row:
    return Row("tsdb", key, [Cell("t", b"a", 1, b"v"), Cell("t", qualifier, timestamp_ms, value)])


@pytest.mark.parametrize(
    "good", [row(key=b"k" * 4096), row(qualifier=b"q" * 16384), row(value=b"v" * 1000), row(timestamp_ms=0)]
)
def test_rows_at_the_limits_are_taken(good: Row, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CELL_BYTES", 1000)
    assert over_limit(good) is None


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (row(key=b"k" * 4097), "row key of 4097 bytes"),
        (row(key=b""), "row key of 0 bytes"),
        (row(qualifier=b"q" * 16385), "qualifier of 16385 bytes"),
        (row(value=b"v" * 1001), "cell of 1001 bytes"),
        (row(timestamp_ms=-1), "cell timestamp of -1 ms"),
    ],
)
def test_rows_over_a_limit_are_rejected_as_they_are(
    bad: Row, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "CELL_BYTES", 1000)
    rejected = over_limit(bad)
    assert rejected is not None
    assert (rejected.reason, rejected.stage) == (Reason.OVER_BIGTABLE_LIMIT, Stage.VALIDATE)
    assert rejected.message.startswith(why)
    assert row_of(rejected) == bad


def test_the_limit_of_cells_is_bigtables() -> None:
    assert rows.CELL_BYTES == 100_000_000
    assert rows.MUTATIONS == 100_000


@pytest.mark.parametrize(("cells", "sizes"), [(100_000, [100_000]), (250_001, [100_000, 100_000, 50_001])])
def test_rows_of_many_cells_are_split(cells: int, sizes: list[int]) -> None:
    whole = Row("tsdb", b"k", [Cell("t", number.to_bytes(4, "big"), 1, b"v") for number in range(cells)])
    parts = list(split_row(whole))
    assert [len(part.cells) for part in parts] == sizes
    assert [cell for part in parts for cell in part.cells] == whole.cells
    assert {(part.table, part.key) for part in parts} == {("tsdb", b"k")}


def test_pack_rejects_what_is_over_a_limit(
    bigtable: tuple[str, str], prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store.create(bigtable, prefix)
    monkeypatch.setattr(limits, "CELL_BYTES", 100)
    table, packed = store.layout.data_table, piece(store.layout, range(START_MS, START_MS + 200, 2))

    def build(root: beam.Pipeline) -> dict[str, beam.PCollection[Any]]:
        groups = [((table, b"large"), [packed]), ((table, b"k" * 4097), [piece(store.layout, [START_MS])])]
        groups.append(((table, ROW_KEY), [piece(store.layout, [START_MS])]))
        outputs = (
            root
            | beam.Create([encoded(groups)])
            | beam.ParDo(PackFn(store.layout, Packing.COMPACTED)).with_outputs(REJECTED, main="main")
        )
        return {"rows": outputs.main, "rejected": outputs[REJECTED]}

    outputs = eagerly(build)
    assert [plain_row(row) for row in outputs["rows"]] == [
        Row(table, ROW_KEY, [Cell("t", b"\0\0", 1, b"\0")], [])
    ]
    assert {row_of(one).key for one in outputs["rejected"]} == {b"large", b"k" * 4097}
    assert {one.reason for one in outputs["rejected"]} == {Reason.OVER_BIGTABLE_LIMIT}


def encoded(groups: list[Group]) -> Encoded:
    """The fragments of rows as one element."""
    fragments = [RowFragment(*row_key, packed) for row_key, parts in groups for packed in parts]
    return Encoded(fragments, (), 0)


def packed_points(
    layout: contract.Store, groups: list[tuple[tuple[str, bytes], list[bytes]]]
) -> tuple[list[Row], list[Row]]:
    """(the rows of fragments in packing `points`, those that are rejected)."""
    fn = PackFn(layout, Packing.POINTS)
    fn.start_bundle()
    outputs = list(fn.process(encoded(groups)))
    outputs += [output if isinstance(output, TaggedOutput) else output.value for output in fn.finish_bundle()]
    rejections = [output.value for output in outputs if isinstance(output, TaggedOutput)]
    rejected = [row_of(getattr(rejection, "value", rejection)) for rejection in rejections]
    rows = [plain_row(output) for output in outputs if isinstance(output, EncodedRow)]
    return [row._replace(deleted=()) for row in rows], rejected


def point_groups(layout: contract.Store, keys: list[bytes], arrival_ms: int = 7) -> list[Group]:
    points = [(SERIES, START_MS + second * 1000, False, second) for second in range(500)]
    (fragment,) = layout.encode(PointBatch.of(points, arrival_ms), [KEY]).fragments
    return [((fragment.table, key or fragment.key), [fragment.packed]) for key in keys]


@pytest.mark.parametrize("arrival_ms", [7, (1 << 56) // 1000, 1 + (1 << 56) // 1000, limits.LAST_MS])
@pytest.mark.parametrize("layout", [OpenTsdb(), Heroic(), KairosDb()], ids=lambda layout: layout.name)
def test_rows_of_points_are_the_same_cells_as_bytes(layout: contract.Store, arrival_ms: int) -> None:
    groups = point_groups(layout, [b"a", b"b"], arrival_ms)
    rows, rejected = packed_points(layout, groups)
    assert rows == [pack_row(layout, *row_key, packed, Packing.POINTS) for row_key, packed in groups]
    assert not rejected


@pytest.mark.parametrize("layout", [OpenTsdb(), Heroic(), KairosDb()], ids=lambda layout: layout.name)
def test_a_row_of_points_over_a_limit_is_rejected_and_the_others_are_written(layout: contract.Store) -> None:
    groups = point_groups(layout, [b"a", b"k" * 4097, b"b"])
    rows, rejected = packed_points(layout, groups)
    whole = [pack_row(layout, *row_key, packed, Packing.POINTS) for row_key, packed in groups]
    assert (rows, rejected) == ([whole[0], whole[2]], [whole[1]])


def test_a_row_of_more_points_than_a_request_takes_is_split(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_mutations, "MUTATIONS", 200)
    layout = KairosDb()
    groups = point_groups(layout, [b"a"])
    rows, _ = packed_points(layout, groups)
    assert [len(row.cells) for row in rows] == [200, 200, 100]
    ((row_key, packed),) = groups
    assert [cell for row in rows for cell in row.cells] == pack_row(
        layout, *row_key, packed, Packing.POINTS
    ).cells
