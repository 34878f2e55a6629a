"""The archive beside compacted rows: bytes per point, and the processor time of `archive`, `query`, `rollup`.

    python -m benchmarks.archive --days 10 --series 40

| figure | is |
|---|---|
| `points`, `compacted`, `archive` | bytes per point of row keys, qualifiers and values |
| `…, zstd` | the same in blocks of 64 KiB of whole cells, each compressed by zstd: about what Bigtable does |
| `share of compacted` | of `archive, zstd` in `compacted, zstd` |
| `gauge, streamed` | gauges whose points were published one by one, within 0.1 s on average (`1 s`: evenly) |
| `arrivals, entropy` | bytes per point that any exact code of these arrivals needs |
| `query`, `downsample` | reading the points of all series; their hourly averages |
| `rollup` | reading and accumulating hours, day by day |
| `archive`, `scan` | archiving compacted rows; a bare scan of them |
| `share of scan, archive` | points per second of `archive` by those of `scan` |
| `read`, `pcodec`, `accumulate` | parts of that rollup alone: rows, decompression, sums of hours |
| `M points/s` | million points per second of processor time of this process |
| `copy` | a copy of the times and values of all points |
| `times` | points per second of the archive by those of compacted rows |
| `first` | of the first run after reads of other kinds; the other figures are of a second run |
| `times rollup, limit` | of a rollup that does nothing but `read`, `pcodec` and `accumulate` |
| `times query, limit` | of a query that does nothing but `read`, `pcodec` and `copy` |
| `peak of an archive run` | memory (RSS) of a process that archives this many points of one metric |

A first run also asks the kernel for the memory that the reads before it gave back, which takes as long as
decoding the archive. protobuf gives back all free memory (`malloc_trim`) whenever it has freed 10,000 blocks:
once or more in a read of compacted rows, once in many reads of the archive.
"""

from __future__ import annotations

import functools
import gzip
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import zstandard

from benchmarks import bench
from benchmarks.bench import TARGET
from timebeam.pipelines import cli
from timebeam.pipelines.options.use_settings import settings_table
from timebeam.schema.archive import archive_cell, archive_rows
from timebeam.schema.archive.archive_rows import archive_cells
from timebeam.schema.bits.arrays import Kind
from timebeam.schema.core.contract import pack_row
from timebeam.schema.core.point_fragments import Name, Packing
from timebeam.schema.core.points import PointBatch, Series
from timebeam.schema.core.rows import Cell, Row
from timebeam.schema.core.selection import Finding, Reader, Selected, Selection
from timebeam.schema.formats import Message, message_format
from timebeam.schema.query.downsample import Downsampling
from timebeam.schema.rollup.accumulate import Accumulator
from timebeam.schema.stores.opentsdb.layout import OpenTsdb
from timebeam.schema.stores.opentsdb.options import OpenTsdbOptions
from timebeam.schema.stores.opentsdb.select import select_metrics
from timebeam.transforms.bigtable.create_tables import create_tables
from timebeam.transforms.bigtable.write_rows import write_all
from timebeam.transforms.care.archive_hours import archive_metric
from timebeam.transforms.care.range_leases import Leases
from timebeam.transforms.care.rows_to_archive import ArchiveJob
from timebeam.transforms.query.read_points import find_series
from timebeam.transforms.read.table_reader import RememberingReader, TableReader, scan_table
from timebeam.transforms.rollup.read_chunk import NumberReader

_ARCHIVE = """\
import sys
from benchmarks import archive
assert archive.archive_points(archive.layout_of(sys.argv[1], archive=True)) == int(sys.argv[2])
print(*[line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")])
"""

START_S = 1_767_225_600 // archive_rows.BLOCK_S * archive_rows.BLOCK_S
_EXAMPLES = Path(__file__).resolve().parents[1] / "examples" / "metrics"
_BLOCK_BYTES = 64 << 10
_ARRIVAL_MS = (START_S + 40 * 86_400) * 1000


def generated(kind: str, series: int, days: int, step_s: int = 10) -> PointBatch:
    """Points of a kind: counter, gauge (two decimals), doubles, flags, sparse (about one in half an hour).

    After a comma: points that were published one by one, "streamed" or "streamed, 1 s".
    """
    kind, _, published = kind.partition(", ")
    random = np.random.default_rng(7)
    n = days * 86_400 // step_s
    times_s = START_S + np.tile(np.arange(n) * step_s, series)
    steps = random.normal(0, 0.2, (series, n))
    is_kept = random.random(series * n) < (step_s / 1800 if kind == "sparse" else 1.0)
    values = {
        "counter": lambda: np.cumsum(random.poisson(300, (series, n)), axis=1),
        "gauge": lambda: np.round(50 + np.cumsum(steps, axis=1), 2),
        "doubles": lambda: random.normal(50, 10, (series, n)),
        "flags": lambda: (random.random((series, n)) < 0.999).astype(np.int64),
        "sparse": lambda: np.round(50 + 10 * random.random((series, n)), 2),
    }[kind]().ravel()[is_kept]
    is_float = values.dtype == np.float64
    count = len(values)
    arrivals_ms = np.full(count, _ARRIVAL_MS)
    if published:
        is_even = published.endswith("1 s")
        lags_ms = random.uniform(0, 1000, count) if is_even else random.exponential(100, count)
        arrivals_ms = times_s[is_kept] * 1000 + lags_ms.astype(np.int64)
    return PointBatch(
        tuple(Series.of("m", {"host": f"h{number}"}) for number in range(series)),
        np.repeat(np.arange(series, dtype=np.int32), n)[is_kept],
        times_s[is_kept] * 1000,
        np.zeros(count, np.bool_),
        np.full(count, Kind.FLOAT if is_float else Kind.INTEGER, np.uint8),
        values.view(np.int64),
        arrivals_ms,
    )


def entropy(batch: PointBatch) -> float:
    """Bytes per point of the lags of arrivals, drawn independently: any exact code needs as many."""
    shares = np.unique(batch.arrivals_ms - batch.times_ms, return_counts=True)[1] / len(batch)
    return float(-(shares * np.log2(shares)).sum() / 8)


def examples() -> list[PointBatch]:
    """The points of examples/metrics."""
    batches = []
    for name, kind in (("cpu-memory.json", "opentsdb-json"), ("disk-network-process.txt", "opentsdb-text")):
        text = gzip.decompress((_EXAMPLES / f"{name}.gz").read_bytes())
        batches.append(message_format(kind, {}).parse(Message(text, _ARRIVAL_MS, "examples", 0)).batch)
    return batches


class Rows:
    """The rows of points in the three forms, with UIDs in the order of names.

    Args:
      layout: of the data table.
    """

    def __init__(self, layout: OpenTsdb) -> None:
        self.layout, self.uids = layout, dict[Name, bytes]()

    def of(self, batch: PointBatch, packing: Packing) -> Iterator[Row]:
        """The data rows."""
        layout = self.layout
        for series in batch.series:
            for name in layout.uids.names(series):
                number = sum(other.kind == name.kind for other in self.uids) + 1
                self.uids.setdefault(name, number.to_bytes(3, "big"))
        keys = [layout.series_key(series, self.uids) for series in batch.series]
        for fragment in layout.encode(batch, keys).fragments:
            yield pack_row(layout, fragment.table, fragment.key, [fragment.packed], packing)

    def archived(self, batch: PointBatch) -> Iterator[Row]:
        """The archive rows."""
        options = self.layout.options
        order = np.lexsort((batch.times_ms, batch.index))
        for number, series in enumerate(batch.series):
            points = batch.take(order[batch.index[order] == number])
            key = self.layout.series_key(series, self.uids)
            hours = int(points.times_ms[-1] - points.times_ms[0]) // 3_600_000 + 1
            code = archive_rows.span_for(len(points), hours)
            bases_s = points.times_ms // 1000 // archive_rows.SPANS_S[code] * archive_rows.SPANS_S[code]
            for base_s in np.unique(bases_s).tolist():
                row_key = archive_rows.archive_key(key, base_s, code)
                of_row = points.take(np.flatnonzero(bases_s == base_s))
                yield Row(self.layout.archive_view.table, row_key, archive_cells(options, row_key, of_row))

    def names(self) -> Iterator[Row]:
        """The rows of the UID table."""
        for (kind, text), uid in self.uids.items():
            table = self.layout.options.uid_table
            yield Row(table, text.encode(), [Cell("id", kind.encode(), 0, uid)])
            yield Row(table, uid, [Cell("name", kind.encode(), 0, text.encode())])


def stored(rows: Iterable[Row]) -> tuple[int, int]:
    """(bytes of keys, qualifiers and values; the same in compressed blocks)."""
    compressor = zstandard.ZstdCompressor(level=3)
    raw = compressed = size = 0
    block: list[bytes] = []
    for row in rows:
        for cell in row.cells:
            block.append(row.key + cell.qualifier + cell.value)
            size += len(block[-1])
            if size >= _BLOCK_BYTES:
                raw, compressed = raw + size, compressed + len(compressor.compress(b"".join(block)))
                block, size = [], 0
    return raw + size, compressed + len(compressor.compress(b"".join(block)))


def sizes(batches: list[PointBatch]) -> bench.Figures:
    """Bytes per point of some points in the three forms."""
    rows = Rows(OpenTsdb(OpenTsdbOptions(archive=True)))
    n = sum(map(len, batches))
    forms: dict[str, Callable[[PointBatch], Iterable[Row]]] = {
        "points": functools.partial(rows.of, packing=Packing.POINTS),
        "compacted": functools.partial(rows.of, packing=Packing.COMPACTED),
        "archive": rows.archived,
    }
    figures: dict[str, list[float]] = {}
    for name, make in forms.items():
        raw, compressed = stored(row for batch in batches for row in make(batch))
        figures |= {f"{name}, bytes/point": [raw / n], f"{name}, zstd, bytes/point": [compressed / n]}
    share = figures["archive, zstd, bytes/point"][0] / figures["compacted, zstd, bytes/point"][0]
    return {"share of compacted": [share], **figures}


def layout_of(prefix: str, *, archive: bool) -> OpenTsdb:
    """Tables with this prefix."""
    return OpenTsdb(OpenTsdbOptions(table_prefix=prefix, archive=archive))


def store(layout: OpenTsdb, batch: PointBatch) -> None:
    """Makes tables with compacted rows of some points."""
    list(create_tables(TARGET, layout.tables(), dry_run=False))
    rows = Rows(layout)
    write_all(TARGET, layout.data_table, list(rows.of(batch, Packing.COMPACTED)))
    write_all(TARGET, layout.options.uid_table, list(rows.names()))


def archive_points(layout: OpenTsdb) -> int:
    """Archives all rows; the number of points."""
    leases = Leases(TARGET, settings_table(layout.options.table_prefix), "archive")
    end_s = START_S + archive_rows.BLOCK_S
    job = ArchiveJob(TARGET, layout, 0, end_s, int(time.time() * 1e6), leases, True, 0)
    return sum(tally.points_read for tally in archive_metric(job, b"\0\0\1"))


def peak_mib(batch: PointBatch) -> float:
    """Peak memory of a process that archives points of one metric."""
    prefix = f"p{len(batch)}-"
    store(layout_of(prefix, archive=True), batch)
    return int(bench.run_child(["-c", _ARCHIVE, prefix, str(len(batch))]).output) / 1024


def speeds(batch: PointBatch, days: int, turns: int) -> dict[str, list[float]]:
    """Million points per second of processor time, over compacted rows and over the archive."""
    plain, archived = layout_of(f"a{len(batch)}-", archive=False), layout_of(f"s{len(batch)}-", archive=True)
    for layout in (plain, archived):
        store(layout, batch)
    figures: dict[str, list[float]] = {}

    def timed(name: str, run: Callable[[], int]) -> None:
        begun = time.process_time()
        assert run() == len(batch)
        figures.setdefault(f"{name}, M points/s", []).append(len(batch) / (time.process_time() - begun) / 1e6)

    def scan() -> int:
        assert sum(len(row.cells) for row in scan_table(TARGET, plain.data_table))
        return len(batch)

    timed("scan", scan)
    timed("archive", functools.partial(archive_points, archived))
    days_ms = [(start_s * 1000, (start_s + 86_400) * 1000) for start_s in _starts_s(days)]
    selected = [row for period in days_ms for row in _select(archived, period)()]
    rows = [row for row in selected if not isinstance(row, Finding)]
    batches = [archived.decode_rows(rows[start : start + 11]).batch for start in range(0, len(rows), 11)]
    for _ in range(turns):
        timed("read", lambda: len(batch) * bool([list(_select(archived, period)()) for period in days_ms]))
        timed("pcodec", functools.partial(_decompress, rows))
        timed("accumulate", functools.partial(_accumulate, batches))
        timed("copy", functools.partial(_copy, batches))
        for form, layout in (("compacted", plain), ("archive", archived)):
            runs = {
                "query": functools.partial(_query, layout),
                "downsample": functools.partial(_downsample, layout, len(batch)),
                "rollup": functools.partial(_roll_up, layout, days),
            }
            for name, run in runs.items():
                timed(f"first {name} {form}", run)
                timed(f"{name} {form}", run)
    speed = {name.removesuffix(", M points/s"): np.array(values) for name, values in figures.items()}
    for name in ("query", "downsample", "rollup"):
        for turn in (name, f"first {name}"):
            figures[f"times {turn}"] = (speed[f"{turn} archive"] / speed[f"{turn} compacted"]).tolist()
    for name, last in (("query", "copy"), ("rollup", "accumulate")):
        parts_s = sum(1 / speed[part] for part in ("read", "pcodec", last))
        figures[f"times {name}, limit"] = (1 / parts_s / speed[f"{name} compacted"]).tolist()
    figures["share of scan, archive"] = (speed["archive"] / speed["scan"]).tolist()
    return figures


def _starts_s(days: int) -> range:
    return range(START_S, START_S + days * 86_400, 86_400)


def _select(
    layout: OpenTsdb, period: tuple[int, int], reader: Reader | None = None
) -> Callable[[], Iterator[Selected | Finding]]:
    """The rows of the metric in [start, end), in ms."""
    reader = reader or TableReader(TARGET)
    return functools.partial(select_metrics, layout, [b"\0\0\1"], (period[0], period[1] - 1), reader)


def _decompress(rows: Sequence[Selected]) -> int:
    """Decompresses the columns of archive rows, and does nothing with them; the number of points."""
    points = 0
    for selected in rows:
        for cell in selected.row.cells:
            header = archive_cell.header_of(cell.value)
            times = cell.value[40 : 40 + header.time_bytes]
            values = cell.value[40 + header.time_bytes + header.arrival_bytes :]
            is_floats = header.kind == 1 and header.decimals is None
            archive_cell.decompress(times, np.empty(header.points, np.uint32))
            archive_cell.decompress(values, np.empty(header.points, np.float64 if is_floats else np.int64))
            points += header.points
    return points


def _accumulate(batches: Sequence[PointBatch]) -> int:
    accumulator = Accumulator({3600}, ends=False)
    for batch in batches:
        accumulator.add(batch)
    accumulator.take()
    return sum(map(len, batches))


def _copy(batches: Sequence[PointBatch]) -> int:
    """Copies the columns of an answer; the number of points."""
    columns = [(batch.times_ms.copy(), batch.bits.copy()) for batch in batches]
    return sum(len(times_ms) for times_ms, _ in columns)


def _selection() -> Selection:
    return Selection("m", {}, START_S * 1000, (START_S + archive_rows.BLOCK_S) * 1000 - 1)


def _query(layout: OpenTsdb) -> int:
    found, corruption, _ = find_series(TARGET, layout, _selection())
    assert not corruption
    return sum(len(series.times_ms) for series in found)


def _downsample(layout: OpenTsdb, points: int) -> int:
    found, _, _ = find_series(TARGET, layout, _selection(), how=Downsampling.parse("1h-avg"))
    assert found
    return points


def _roll_up(layout: OpenTsdb, days: int) -> int:
    points = 0
    reader = RememberingReader(TableReader(TARGET), layout.options.uid_table)
    for start_s in _starts_s(days):
        period = start_s * 1000, (start_s + 86_400) * 1000
        accumulator = Accumulator({3600}, ends=False)
        for batch in NumberReader(layout, _select(layout, period, reader), period):
            assert isinstance(batch, PointBatch)
            points += len(batch)
            accumulator.add(batch)
        accumulator.take()
    return points


def measure(folder: Path, *, days: int = 10, series: int = 40, turns: int = 3) -> bench.Cases:
    """A case for each kind of points, and one for the speed."""
    del folder
    cli._keep_heap()  # as every command does
    kinds = ("counter", "gauge", "doubles", "flags", "sparse")
    cases: dict[str, bench.Figures] = {"examples/metrics": sizes(examples())}
    cases |= {kind: sizes([generated(kind, series // 4, days)]) for kind in kinds}
    for kind in ("gauge, streamed", "gauge, streamed, 1 s"):
        batch = generated(kind, series // 4, days)
        cases[kind] = {**sizes([batch]), "arrivals, entropy, bytes/point": [entropy(batch)]}
    for kind in ("gauge", "counter"):
        cases[f"{kind}, speed"] = speeds(generated(kind, series, days), days, turns)
    for number in (series // 10, series):
        batch = generated("gauge", number, days)
        cases[f"peak of an archive run, {len(batch):,} points"] = {"peak, MiB": [peak_mib(batch)]}
    return cases


if __name__ == "__main__":
    sys.exit(bench.main(measure))
