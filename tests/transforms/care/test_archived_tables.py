"""Exports and copies of archived tables, beside tables with the same points that were never archived."""

from __future__ import annotations

import itertools
import json
import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support.any_store import AnyStore
from tests.support.commands import Ran, timebeam
from tests.support.stored import Store
from timebeam.pipelines.commands import COMMANDS, find_command
from timebeam.pipelines.options.use_settings import settings_table
from timebeam.schema.archive.archive_rows import BLOCK_S, decode_archive_rows
from timebeam.schema.core.annotations import Annotation
from timebeam.schema.core.contract import pack_row
from timebeam.schema.core.point_fragments import Name, Packing
from timebeam.schema.core.points import PointBatch, Series, SeriesKey
from timebeam.schema.core.rejections import Rejected
from timebeam.schema.core.rows import WHOLE_TABLE, Cell, Deletion, KeyRange, Row
from timebeam.schema.core.selection import Selected
from timebeam.transforms.bigtable.create_tables import create_tables
from timebeam.transforms.bigtable.read_ranges import ranges_between
from timebeam.transforms.bigtable.write_rows import write_all
from timebeam.transforms.care.archive_hours import archive_metric
from timebeam.transforms.care.range_leases import Leases
from timebeam.transforms.care.rows_to_archive import ArchiveJob
from timebeam.transforms.copy.copied_points import read_points
from timebeam.transforms.read.table_reader import TableReader, scan_table, within
from timebeam.transforms.rollup.changed_hours import changed_hours_table, read_changed_hours

DAY_S, HOUR_MS = 86_400, 3_600_000
BLOCK_START_S = 1_767_225_600 // BLOCK_S * BLOCK_S  # in December 2025
START_S = BLOCK_START_S + 29 * DAY_S
NOW_S = START_S + 100 * DAY_S
ARRIVAL_MS = START_S * 1000 + 10 * DAY_S * 1000
UIDS = {"m": 1, "n": 2, "o": 3, "nameless": 4}
PERIOD = (f"--start={START_S}", f"--end={START_S + 3 * DAY_S}")
_TICKS = itertools.count()

Values = dict[int, int | float]


VARIANTS = ["heroic", "heroic-readable-names", "kairosdb-milliseconds"]
each_layout = pytest.mark.parametrize(
    "tables",
    [
        "opentsdb",
        "kairosdb-milliseconds",
        *(pytest.param(name, marks=pytest.mark.long) for name in VARIANTS[:2]),
    ],
    indirect=True,
)
each_layout_long = pytest.mark.parametrize(
    "tables", ["opentsdb", *(pytest.param(name, marks=pytest.mark.long) for name in VARIANTS)], indirect=True
)

AStore = Store | AnyStore


class Tables(NamedTuple):
    """Tables with the same points."""

    archived: Any
    plain: Any

    def put(self, *arguments: Any) -> None:
        for store in self:
            put(store, *arguments)


def uid(number: int) -> bytes:
    return number.to_bytes(3, "big")


def create(bigtable: tuple[str, str], prefix: str, variant: str = "opentsdb", **options: Any) -> AStore:
    if variant != "opentsdb":
        return AnyStore.create(bigtable, prefix, variant, **options)
    store = Store.create(bigtable, prefix, salt_width=1, salt_buckets=2, **options)
    names = [("metrics", name) for name in UIDS if name != "nameless"] + [("tagk", "host")]
    numbers = {("tagv", "a"): 1, ("tagv", "b"): 2} | {pair: UIDS.get(pair[1], 1) for pair in names}
    rows = []
    for (kind, name), number in numbers.items():
        rows += [
            Row(store.layout.options.uid_table, name.encode(), [Cell("id", kind.encode(), 0, uid(number))]),
            Row(store.layout.options.uid_table, uid(number), [Cell("name", kind.encode(), 0, name.encode())]),
        ]
    write_all(store.target, store.layout.options.uid_table, rows)
    return store


def series(metric: str, host: str = "a") -> Series:
    return Series.of(metric, {"host": host})


def put(
    store: Store,
    points: dict[Series, Values],
    arrival_ms: int = ARRIVAL_MS,
    packing: Packing = Packing.COMPACTED,
) -> None:
    """Writes points as one batch that arrived at this time."""
    records = [
        (of, time_ms, time_ms % 1000 != 0, value)
        for of, values in points.items()
        for time_ms, value in values.items()
    ]
    batch = PointBatch.of(records, arrival_ms)
    uids = {Name("metrics", metric): uid(number) for metric, number in UIDS.items()}
    uids |= {Name("tagk", "host"): uid(1), Name("tagv", "a"): uid(1), Name("tagv", "b"): uid(2)}
    keys: list[SeriesKey | None] = [store.layout.series_key(of, uids) for of in batch.series]
    packing = packing if packing in store.layout.writing.packings else store.layout.writing.packings[0]
    encoded = store.layout.encode(batch, keys)
    assert not encoded.rejected
    rows = [
        pack_row(store.layout, part.table, part.key, [part.packed], packing) for part in encoded.fragments
    ]
    write_all(store.target, store.layout.tables()[0].name, rows)
    index = store.layout.index
    for number, base_ms in index.entries(batch) if index else ():
        for row in index.rows(batch.series[number], base_ms):
            write_all(store.target, row.table, [row])


def archive_points(store: Store, metric: str, *, delete_source: bool = True, days: float = 2) -> None:
    job = ArchiveJob(
        store.target,
        store.layout,
        0,
        START_S + int(days * DAY_S),
        NOW_S * 1000,
        Leases(store.target, settings_table(""), "archive"),
        delete_source=delete_source,
        reader_ms=0,
        clock=lambda: NOW_S + next(_TICKS) / 100,
    )
    key = uid(UIDS[metric]) if store.layout.uids else metric.encode()
    assert sum(tally.points_archived for tally in archive_metric(job, key))


def gauge(start_s: int, count: int, step_s: float, seed: int) -> Values:
    rng = random.Random(seed)
    return {
        int((start_s + step_s * i) * 1000): rng.choice([rng.randrange(1 << 52) << 10, rng.random()])
        for i in range(count)
    }


@pytest.fixture
def tables(bigtable: tuple[str, str], prefix: str, request: pytest.FixtureRequest) -> Tables:
    """Metric `m` is archived without source, `n` with its source, `o` is not; late points came for all."""
    variant = getattr(request, "param", "opentsdb")
    tables = Tables(
        create(bigtable, f"{prefix}archived-", variant, archive=True),
        create(bigtable, f"{prefix}plain-", variant),
    )
    points = {
        series("m"): gauge(START_S, 2000, 100.5, 1),
        series("m", "b"): gauge(START_S, 80, 3000, 2),
        series("n"): gauge(START_S, 700, 300, 3),
        series("o"): gauge(START_S, 700, 300, 4),
    }
    tables.put(points)
    archive_points(tables.archived, "m")
    archive_points(tables.archived, "n", delete_source=False, days=1.5)
    late: dict[Series, Values] = {}
    for of, values in points.items():
        times = sorted(values)
        late[of] = {times[5]: -1, times[5] + 1: 7, times[-40] + 2: 0.25, times[len(times) // 2]: -2.5}
    tables.put(late, ARRIVAL_MS + 1, Packing.POINTS)
    older = {of: {min(values) + 3: 8} for of, values in points.items()}
    tables.put(older, ARRIVAL_MS - 1)  # an older arrival counts where the archive lacks the instant
    return tables


def read(
    store: Store, ranges: Sequence[KeyRange] = (WHOLE_TABLE,), start_ms: int = 0, end_ms: int = NOW_S * 1000
) -> tuple[dict[tuple[Series, int], tuple[Any, ...]], list[Rejected]]:
    """({series and time: (in ms, type, value)} of each point, rejections), as a copy reads them in splits."""
    points: dict[tuple[Series, int], tuple[Any, ...]] = {}
    rejected = []
    for keys in ranges:
        reader = within(TableReader(store.target), store.layout, keys)
        for batch in read_points(store.layout, reader, start_ms, end_ms):
            if isinstance(batch, Rejected):
                rejected.append(batch)
                continue
            for (of, time_ms, value), in_ms in zip(batch.points(), batch.in_ms.tolist(), strict=True):
                assert (of, time_ms) not in points, "a point is read twice"
                points[of, time_ms] = in_ms, type(value), value
    return points, rejected


def splits(store: Store) -> Sequence[KeyRange]:
    """The most splits that a copy can have."""
    names = (store.layout.data_table, store.layout.archive_view.table)
    keys = {row.key for name in names for row in scan_table(store.target, name)}
    cuts = sorted({store.layout.cut_at(key) for key in keys})
    assert len(cuts) >= 3
    return ranges_between(cuts)


def archive_rows(store: Any) -> list[Row]:
    rows = scan_table(store.target, store.layout.archive_view.table)
    return [row for row in rows if any(cell.family == "t" for cell in row.cells)]


@each_layout
def test_every_point_is_read_once_in_every_split_and_period(tables: Tables) -> None:
    middle_ms = START_S * 1000 + DAY_S * 1000
    periods = [
        (0, NOW_S * 1000),
        (START_S * 1000 + 1_234_567, middle_ms + 7),
        (middle_ms - HOUR_MS, middle_ms - 1),
        (middle_ms + DAY_S * 1000, NOW_S * 1000),
    ]
    for is_archived_again in (False, True):
        if is_archived_again:
            for metric in ("m", "n", "o"):
                archive_points(tables.archived, metric, days=1 if metric == "o" else 3)
        for period in periods:
            expected = read(tables.plain, [WHOLE_TABLE], *period)
            assert len(expected[0]) > 10
            assert expected[1] == []
            assert read(tables.archived, [WHOLE_TABLE], *period) == expected
            assert read(tables.archived, splits(tables.archived), *period) == expected


def test_rows_that_no_reader_can_name_or_reach_are_rejected(tables: Tables) -> None:
    store = tables.archived
    put(store, {series("nameless"): gauge(START_S, 10, 60, 5)})
    archive_points(store, "nameless")
    put(store, {series("nameless"): {START_S * 1000: 3}}, ARRIVAL_MS + 1)
    [nameless] = [row for row in archive_rows(store) if row.key[1:4] == uid(4)]
    [late] = [row for row in store.rows() if row.key[1:4] == uid(4)]
    strange = [b"\0short", b"\7" + nameless.key[1:]]
    archive = store.layout.archive_view.table
    write_all(store.target, archive, [Row(archive, key, nameless.cells) for key in strange])
    points, rejected = read(store)
    assert points == read(tables.plain)[0]
    assert {(letter.payload, letter.source) for letter in rejected} == {
        (nameless.key, f"row of table {archive}"),
        (late.key, f"row of table {store.layout.data_table}"),
        (strange[0], f"row of table {archive}"),
        (strange[1], f"row of table {archive}"),
    }
    assert len(rejected) == 4


def archived_times(store: AStore) -> dict[bytes, list[int]]:
    """The times in ms of the archived points of metric `m`, by row."""
    layout: Any = store.layout
    if layout.uids:
        rows = [row for row in archive_rows(store) if row.key[1:4] == uid(1)]
    else:
        heads = tuple(layout.series_key(series("m", host), {}).head for host in "ab")
        rows = [row for row in archive_rows(store) if row.key.startswith(heads)]
    decoded = {
        row.key: decode_archive_rows(layout.archive_view.heads, [Selected(row, series("m"))]) for row in rows
    }
    return {key: content.batch.times_ms.tolist() for key, content in decoded.items()}


def files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def export(store: Store, folder: Path, *flags: str, code: int = 0) -> dict[str, Any]:
    place = f"--output={folder}", f"--dead-letters={folder}-dead"
    ran = timebeam("export", *store.flags, *place, *PERIOD, "--summary=json", *flags)
    assert ran.code == code, ran
    summary: dict[str, Any] = json.loads(ran.out)
    return summary


@each_layout_long
@pytest.mark.parametrize("flag", ["--by-metric", pytest.param("--tags=map", marks=pytest.mark.long)])
def test_an_export_of_archived_tables_has_the_same_files(tables: Tables, tmp_path: Path, flag: str) -> None:
    export(tables.plain, tmp_path / "plain", flag)
    summary = export(tables.archived, tmp_path / "archived", flag)
    assert summary["points_exported"] == len(read(tables.plain)[0])
    assert files(tmp_path / "archived") == files(tmp_path / "plain")
    assert len(files(tmp_path / "plain")) >= 6


def test_a_corrupt_row_of_the_archive_is_a_dead_letter_of_an_export(tables: Tables, tmp_path: Path) -> None:
    store = tables.archived
    row = archive_rows(store)[0]
    [cell] = [cell for cell in row.cells if cell.family == "t"]
    bad = cell._replace(value=cell.value[:-1] + bytes((cell.value[-1] ^ 1,)))
    write_all(store.target, row.table, [Row(row.table, row.key, [bad], [Deletion("t", cell.qualifier)])])
    summary = export(store, tmp_path / "out")
    assert list(summary["rejected"]) == ["corrupt-file"]
    assert 0 < summary["points_exported"] < len(read(tables.plain)[0])
    [path] = tmp_path.glob("out-dead*")
    [letter, *_] = map(json.loads, path.read_text().splitlines())
    assert "checksum" in letter["message"]


def copy(source: Store, sink: Store, folder: Path, *flags: str) -> Ran:
    source_flags, sink_flags = (
        [flag for flag in store.flags if not re.match("--(layout|project|instance)=", flag)]
        for store in (source, sink)
    )
    place = [f"--project={sink.target.project}", f"--instance={sink.target.instance}"]
    return timebeam(
        *("copy", f"--from={source.layout.name}", f"--to={sink.layout.name}", *place, *source_flags),
        *(flag.replace("--", "--to_", 1) for flag in sink_flags),
        *(["--auto-create-metrics"] if sink.layout.uids else []),
        *(f"--dead-letters={folder / 'dead'}", *PERIOD, *flags),
    )


def test_a_copy_of_archived_tables_has_all_points_and_verifies_them(
    bigtable: tuple[str, str], prefix: str, tables: Tables, tmp_path: Path
) -> None:
    sink = Store.create(bigtable, f"{prefix}copy-")
    key = min(row.key for row in tables.plain.rows() if row.key[1:4] == uid(1))
    tsuid = (key[1:4] + key[8:]).hex().upper()
    note = Cell("t", b"\1\0\5", ARRIVAL_MS, Annotation(tsuid, START_S + 5, description="d").stored())
    write_all(tables.archived.target, tables.archived.layout.data_table, [Row("", key, [note])])
    ran = copy(tables.archived, sink, tmp_path)
    expected = tables.plain.points()
    count = sum(map(len, expected.values()))
    assert (ran.code, ran.err) == (0, "")
    assert f"copied {count:,} points of 4 series; verified" in ran.out
    assert "copied 1 annotations and 0 histograms; verified" in ran.out
    assert sink.points() == expected
    assert not list(tmp_path.glob("dead*"))
    lost = next(row for row in sink.rows() if sink.series(row.key).metric == "m")
    sink.remove_row(sink.layout.data_table, lost.key)
    ran = copy(tables.archived, sink, tmp_path, "--verify-only")
    assert ran.code == 1
    assert "are missing" in ran.err
    assert "missing: " in ran.err


@each_layout_long
def test_a_copy_into_archived_tables_changes_no_answer(tables: Tables, tmp_path: Path) -> None:
    before = read(tables.archived)
    ran = copy(tables.plain, tables.archived, tmp_path)
    assert (ran.code, ran.err) == (0, "")
    assert "; verified" in ran.out
    assert read(tables.archived) == before


def delete(store: Store, folder: Path, *flags: str) -> dict[str, Any]:
    """Deletes with the token of a dry run; from archived tables as after an interrupted run."""
    log = folder / store.layout.archive_view.table
    arguments = ("delete", "m", *store.flags, f"--log={log}", "--summary=json", *flags)
    dry = timebeam(*arguments)
    assert dry.code == 0, dry.err
    token = json.loads(dry.out)["token"]
    if store.layout.archive_view.is_used:
        Path(f"{log}-{token}-begun.json").write_text("{}")
        lines = [json.dumps({"table": row.table, "row": row.key.hex()}) for row in store.rows()]
        Path(f"{log}-{token}-1.jsonl").write_text("\n".join(lines))
    ran = timebeam(*arguments, f"--token={token}")
    assert ran.code == 0, ran.err
    assert json.loads(ran.out)["tables"] == json.loads(dry.out)["tables"]
    return json.loads(ran.out)["tables"]  # type: ignore[no-any-return]


@each_layout
def test_a_deletion_takes_archived_points_and_late_ones_and_marks_their_hours(
    tables: Tables, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("timebeam.pipelines.store.delete.SETTLED_MS", 0)  # nobody appends
    period = (f"--start={START_S + 5000}", f"--end={START_S + 2 * DAY_S + 1800}")
    archive_points(tables.archived, "o", days=1)
    list(create_tables(tables.archived.target, [changed_hours_table(tables.archived.layout)], dry_run=False))
    before = read(tables.plain)[0]
    archived = archived_times(tables.archived)
    delete(tables.plain, tmp_path, *period)
    figures = delete(tables.archived, tmp_path, *period)
    expected = read(tables.plain)
    assert 0 < len(expected[0]) < len(before)
    for ranges in ([WHOLE_TABLE], splits(tables.archived)):
        assert read(tables.archived, ranges) == expected
    archive = tables.archived.layout.archive_view.table
    first_ms, last_ms = (int(flag.split("=")[1]) * 1000 for flag in period)
    deleted = [sum(first_ms <= time_ms <= last_ms for time_ms in times) for times in archived.values()]
    assert figures[archive]["points"] == sum(deleted) > 1000
    assert figures[archive]["rows"] == sum(count > 0 for count in deleted)
    assert figures[tables.archived.layout.data_table]["points"] > 0
    marks = {mark.start_s for mark in read_changed_hours(tables.archived.target, tables.archived.layout)}
    gone = {time_ms // HOUR_MS * 3600 for of, time_ms in before.keys() - expected[0].keys()}
    assert gone <= marks <= set(range(min(gone), max(gone) + 1, 3600))
    late: dict[Series, Values] = {series("m"): {START_S * 1000 + 6_000_000: 5}}
    tables.put(late, ARRIVAL_MS - 7)  # deleted points hide nothing that comes later
    assert read(tables.archived) == read(tables.plain)
    archive_points(tables.archived, "m")
    assert read(tables.archived) == read(tables.plain)
    rejected = timebeam("delete", "m", *tables.archived.flags, *period, "--series")
    assert (rejected.code, "--series does not read the archive" in rejected.err) == (2, True)


def test_the_documentation_names_the_commands_that_take_an_archive() -> None:
    page = (Path(__file__).parents[3] / "docs/operate/maintenance.md").read_text()
    lines = [
        line
        for line in page.splitlines()
        if re.match(r"\| `.*\| (read archive|need no archived|deletes from both)", line)
    ]
    named = {name for line in lines for name in re.findall("`(.*?)`", line.split("|")[1])}
    assert {name for name in COMMANDS if find_command(name).takes_archive} == named | {"archive"}
