"""ReadRows and WriteRows: rows of a table in pipelines, and what becomes of those that are rejected."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import apache_beam as beam
import grpc
import pytest
from apache_beam.metrics.execution import MetricsEnvironment
from apache_beam.metrics.metric import Lineage
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.pvalue import PDone
from apache_beam.runners.direct.direct_runner import BundleBasedDirectRunner
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.testing.util import assert_that, equal_to
from apache_beam.transforms.display import DisplayData
from apache_beam.transforms.error_handling import ErrorHandler
from apache_beam.transforms.window import (
    FixedWindows,
    GlobalWindows,
    Sessions,
    SlidingWindows,
    TimestampedValue,
    WindowFn,
)
from apache_beam.utils.timestamp import Timestamp
from google.api_core.exceptions import NotFound, PermissionDenied

import timebeam.transforms.bigtable as connector
from tests.support.fault_proxy import MUTATE_ROWS, BadEntries, Fault, faulty, nth
from tests.support.processes.eager import eagerly
from timebeam.transforms.bigtable import (
    Cell,
    Deletion,
    EncodedRow,
    FailedRow,
    ReadRows,
    Row,
    Target,
    WriteRows,
    beam_steps,
    read_ranges,
)
from timebeam.transforms.bigtable.create_tables import create_tables
from timebeam.transforms.bigtable.mutation_bytes import encoded_mutations

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "beam.md"


class Table(NamedTuple):
    """A table and its families, as `create_tables` takes it."""

    name: str
    families: dict[str, int]


@pytest.fixture
def place(bigtable: tuple[str, str], prefix: str) -> tuple[Target, str]:
    target = Target(*bigtable)
    list(create_tables(target, [Table(prefix, {"f": 2, "g": 1})], dry_run=False))
    return target, prefix


def rows_of(table: str, count: int) -> list[Row]:
    """Rows with cells of any bytes, in the order of columns that Bigtable reads them in."""
    chance = random.Random(count)
    return [
        Row(
            table,
            b"%04d" % number + chance.randbytes(2),
            [
                Cell(
                    family,
                    bytes([column]) + chance.randbytes(3),
                    chance.randrange(1 << 41),
                    chance.randbytes(5),
                )
                for family in "fg"
                for column in range(chance.randrange(1, 4))
            ],
        )
        for number in range(count)
    ]


def write(rows: Sequence[Any], target: Target, **options: Any) -> list[FailedRow]:
    return eagerly(lambda root: {"failed": root | beam.Create(rows) | WriteRows(target, **options)})["failed"]


def read(target: Target, table: str, **options: Any) -> list[Row]:
    """What `ReadRows` gives, by key; the families of a row, which have no order, by name."""
    rows = eagerly(lambda root: {"rows": root | ReadRows(target, table, **options)})["rows"]
    return sorted(row._replace(cells=sorted(row.cells, key=lambda cell: cell.family)) for row in rows)


def test_rows_come_back_as_they_were_written(place: tuple[Target, str]) -> None:
    """Rows, plain tuples, and rows whose mutations are bytes already."""
    target, table = place
    rows = rows_of(table, 90)
    mixed: list[Any] = list(rows)
    mixed[1::3] = [(table, row.key, row.cells, ()) for row in rows[1::3]]
    mixed[2::3] = [
        EncodedRow(table, row.key, encoded_mutations(row.cells, ()), len(row.cells)) for row in rows[2::3]
    ]
    assert write(mixed, target) == []
    assert read(target, table) == rows


def test_deletions_come_before_the_cells_of_a_row(place: tuple[Target, str]) -> None:
    target, table = place
    old = Row(table, b"k", [Cell("f", b"a", 5, b"old"), Cell("f", b"b", 5, b"old")])
    new = Row(
        table,
        b"k",
        [Cell("f", b"a", 4, b"new")],
        [Deletion("f", b"a"), Deletion("f", b"b", 5)],
    )
    assert write([old], target) == write([new], target) == []
    assert read(target, table) == [Row(table, b"k", [*new.cells, old.cells[1]])]


def test_a_part_of_a_table_is_read(place: tuple[Target, str]) -> None:
    target, table = place
    cells = [Cell("f", qualifier, 7, b"v") for qualifier in (b"a", b"b", b"c")]
    rows = [Row(table, b"%03d" % number, [*cells, Cell("g", b"b", 7, b"v")]) for number in range(300)]
    write(rows, target)
    ranges = [(b"010", b"020"), (b"020", b"100"), (b"290", b"")]
    keys = [row.key for row in rows if b"010" <= row.key < b"100" or row.key >= b"290"]
    assert [row.key for row in read(target, table, ranges=ranges, split_bytes=2000)] == keys
    options = {"key_pattern": rb"\C*5", "columns": ("f", b"b", b""), "keys_only": True}
    expected = [
        Row(table, key, [cell._replace(value=b"") for cell in cells[1:]]) for key in keys if key[-1:] == b"5"
    ]
    assert read(target, table, ranges=ranges, **options) == expected


def test_several_versions_are_read(place: tuple[Target, str]) -> None:
    target, table = place
    versions = [Cell("f", b"q", time_ms, b"%d" % time_ms) for time_ms in (9, 8)]
    write([Row(table, b"k", versions)], target)
    assert read(target, table) == [Row(table, b"k", versions[:1])]
    assert read(target, table, versions=2) == [Row(table, b"k", versions)]


@pytest.mark.parametrize(
    "ranges", [[(b"b", b"c"), (b"a", b"b")], [(b"a", b""), (b"b", b"")], [(b"a", b"c"), (b"b", b"d")]]
)
def test_ranges_that_do_not_ascend_are_rejected(ranges: list[tuple[bytes, bytes]]) -> None:
    with pytest.raises(ValueError, match="must ascend"):
        ReadRows(Target("p", "i"), "table", ranges)


def test_a_rejected_row_comes_out_with_its_reason(place: tuple[Target, str], emulator: str) -> None:
    target, table = place
    rows = rows_of(table, 30)
    bad = rows[11]
    with faulty(
        emulator, nth(MUTATE_ROWS, range(1, 99), BadEntries(grpc.StatusCode.INVALID_ARGUMENT, bad.key.__eq__))
    ):
        (failed,) = write(rows, target)
    assert failed.row == bad
    assert "injected" in failed.reason
    assert read(target, table) == [row for row in rows if row is not bad]


def test_an_error_of_the_table_fails_the_bundle(place: tuple[Target, str], emulator: str) -> None:
    target, table = place
    plan = nth(MUTATE_ROWS, range(1, 99), Fault(grpc.StatusCode.PERMISSION_DENIED))
    with faulty(emulator, plan), pytest.raises(PermissionDenied, match="injected"):
        write(rows_of(table, 3), target)


_seen: list[int] = []


def _note(rows: Sequence[Any]) -> None:
    _seen.append(len(rows))


def test_the_buffer_is_bounded_and_every_request_is_told_of(place: tuple[Target, str]) -> None:
    target, table = place
    _seen.clear()
    assert write(rows_of(table, 12), target, buffer_bytes=1, on_written=_note) == []
    assert _seen == [1] * 12


WINDOWS = {
    "global": GlobalWindows(),
    "fixed": FixedWindows(10),
    "sliding": SlidingWindows(10, 5),
    "sessions": Sessions(3),
}


def placed(
    failed: Any, timestamp: Any = beam.DoFn.TimestampParam, window: Any = beam.DoFn.WindowParam
) -> Any:
    """(key, timestamp in s, window) of a failed row."""
    return failed.row.key, int(timestamp), window


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("windows", WINDOWS)
def test_a_rejected_row_keeps_its_windows_and_its_time(
    place: tuple[Target, str], emulator: str, windows: str, streaming: bool
) -> None:
    target, table = place
    rows = rows_of(table, 30)
    options = PipelineOptions(["--streaming"] if streaming else [])
    plan = nth(
        MUTATE_ROWS, range(1, 99), BadEntries(grpc.StatusCode.INVALID_ARGUMENT, lambda key: key < b"0007")
    )
    runner = BundleBasedDirectRunner() if streaming else FnApiRunner()
    with faulty(emulator, plan), beam.Pipeline(runner=runner, options=options) as pipeline:
        timed = pipeline | beam.Create([TimestampedValue(row, n) for n, row in enumerate(rows)])
        windowed = timed | beam.WindowInto(WINDOWS[windows])
        failed = windowed | WriteRows(target, buffer_bytes=100)
        expected = [
            (row.key, n, window)
            for n, row in enumerate(rows[:7])
            for window in WINDOWS[windows].assign(WindowFn.AssignContext(Timestamp(n)))
        ]
        assert_that(failed | beam.Map(placed), equal_to(expected), reify_windows=False)
    assert read(target, table) == rows[7:]


def test_failed_rows_go_to_the_error_handler(place: tuple[Target, str], emulator: str) -> None:
    """With its windows, so that the handler may group them beside those of other transforms."""
    target, table = place
    rows = rows_of(table, 9)
    plan = nth(MUTATE_ROWS, range(1, 99), BadEntries(grpc.StatusCode.INVALID_ARGUMENT, rows[4].key.__eq__))
    with faulty(emulator, plan), beam.Pipeline(runner=FnApiRunner()) as pipeline:
        timed = pipeline | beam.Create([TimestampedValue(row, n) for n, row in enumerate(rows)])
        keyed = beam.Map(lambda failed: failed.row.key) | beam.combiners.Count.PerElement()
        with ErrorHandler(keyed) as handler:
            written = timed | beam.WindowInto(FixedWindows(5)) | WriteRows(target).with_error_handler(handler)
        assert isinstance(written, PDone)
        assert_that(handler.output(), equal_to([(rows[4].key, 1)]))


@pytest.mark.parametrize(("size", "splits"), [(5 << 20, 1), (4 << 30, 32), (4 << 40, 32768)])
def test_rows_are_read_in_splits_of_so_many_bytes(
    monkeypatch: pytest.MonkeyPatch, size: int, splits: int
) -> None:
    """One for each 128 MiB: of a table of any size, neither fewer nor more."""
    keys = 2 * splits
    samples = [(b"%08d" % number, size // keys) for number in range(1, keys)] + [(b"", size // keys)]
    monkeypatch.setattr(read_ranges, "sampled", lambda target, table: samples)
    transform = ReadRows(Target("p", "i"), "t")
    found = list(beam_steps._splits("t", transform.target, transform.ranges, transform.split_bytes))
    assert len(found) == splits
    assert (found[0][0], found[-1][1]) == (b"", b"")
    assert all(end == start for (_, end), (start, _) in itertools.pairwise(found))


def test_a_split_has_bytes() -> None:
    with pytest.raises(ValueError, match="split_bytes 0"):
        ReadRows(Target("p", "i"), "t", split_bytes=0)


def test_monitoring_is_given_calls_tables_and_display_data(place: tuple[Target, str], emulator: str) -> None:
    target, table = place
    rows = rows_of(table, 5)
    plan = nth(MUTATE_ROWS, range(1, 99), BadEntries(grpc.StatusCode.INVALID_ARGUMENT, rows[2].key.__eq__))
    pipeline = beam.Pipeline(runner=FnApiRunner())
    pipeline | beam.Create(rows) | WriteRows(target)
    with faulty(emulator, plan):
        metrics = pipeline.run().metrics()
    name = f"bigtable:{target.project}.{target.instance}.{table}"
    assert (Lineage.query(metrics, Lineage.SOURCE), Lineage.query(metrics, Lineage.SINK)) == (set(), {name})
    pipeline = beam.Pipeline(runner=FnApiRunner())
    pipeline | ReadRows(target, table)
    metrics = pipeline.run().metrics()
    assert (Lineage.query(metrics, Lineage.SOURCE), Lineage.query(metrics, Lineage.SINK)) == ({name}, set())
    with pytest.raises(NotFound):
        read(target, "missing")
    counts = {
        (labels["METHOD"], labels["STATUS"]): info.payload
        for info in MetricsEnvironment.process_wide_container().to_runner_api_monitoring_infos(None).values()
        if (labels := info.labels).get("BIGTABLE_PROJECT_ID") == target.project
        and labels["TABLE_ID"] == table
        and labels["INSTANCE_ID"] == target.instance
    }
    assert set(counts) == {
        ("google.bigtable.v2.MutateRows", "ok"),
        ("google.bigtable.v2.MutateRows", "invalid_argument"),
        ("google.bigtable.v2.ReadRows", "ok"),
    }
    shown = DisplayData.create_from(ReadRows(target, table))
    assert {item.key: item.value for item in shown.items} == {
        "projectId": target.project,
        "instanceId": target.instance,
        "tableId": table,
    }


def test_what_is_exported_is_there() -> None:
    for name in connector.__all__:
        assert getattr(connector, name).__doc__ or name == "KeyRange", name
    with pytest.raises(AttributeError, match="nothing"):
        connector.nothing  # noqa: B018


def test_the_pipeline_of_the_document_runs(
    place: tuple[Target, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """As it is printed, but for the names of instance and tables; it uses nothing else of timebeam."""
    target, table = place
    (code,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert re.findall(r"timebeam[.\w]*", code) == ["timebeam.io", "timebeam.stores"]
    assert len([line for line in code.splitlines() if line]) <= 10
    list(create_tables(target, [Table(f"{table}counts", {"t": 1})], dry_run=False))
    cells = [Cell("f", b"%d" % number, 5, b"v") for number in range(4)]
    keys = {b"sensor#1": 4, b"sensor#2": 1, b"sensor$": 3, b"sensor": 2}
    write([Row(table, key, cells[:count]) for key, count in keys.items()], target)
    code = code.replace("my-project", target.project).replace("my-instance", target.instance)
    code = code.replace('"readings"', repr(table)).replace('"counts"', repr(f"{table}counts"))
    exec(compile(code, str(PAGE), "exec"), {"__name__": "pipeline_of_ten_lines"})
    assert capsys.readouterr().out == ""
    assert read(target, f"{table}counts") == [
        Row(f"{table}counts", key, [Cell("t", b"cells", 0, b"%d" % keys[key])])
        for key in (b"sensor#1", b"sensor#2")
    ]
