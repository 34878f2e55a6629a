"""The graph of every rollup. What differs between the forms in which rollups are stored is a `RollupEncoder`.

           ┌─► rows of intervals whose points are all in a chunk, over existing cells ─► write
chunks ─┬──┴─► fragments by key ─► combine ─► encode ─┐
        └─► ranges ─► existing cells of rows ─────────┴─► delete what is stale ────────► write

| encoder | a fragment's key | existing cells |
|---|---|---|
| `TablesEncoder`: OpenTSDB's tables | its row | are combined with the fragments of the row |
| `SeriesRollupJob`: ordinary series in tables of their own | its series | are grouped with the encoded row |
| `DeclaredRollupJob`: declared tables | its group, as a series | are grouped with the encoded row |
"""

from __future__ import annotations

import abc
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final, NamedTuple

import apache_beam as beam
import msgspec
from apache_beam.pvalue import AsIter, PCollection, TaggedOutput
from apache_beam.typehints.native_type_compatibility import convert_to_beam_type

from timebeam.schema.bits.reasons import Reason
from timebeam.schema.bits.times import HOUR_S, ceil_to, floor_to
from timebeam.schema.core.contract import ReadableStore
from timebeam.schema.core.points import Series
from timebeam.schema.core.rejections import Rejected
from timebeam.schema.core.rows import WHOLE_TABLE, EncodedRow, KeyRange, Row
from timebeam.schema.rollup.buckets import Buckets, packed_series
from timebeam.schema.rollup.day_plan import RollupPart
from timebeam.schema.stores import find_opentsdb
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.dead_letters.letter import row_of
from timebeam.transforms.flow import metrics
from timebeam.transforms.flow.steps import REJECTED, BufferedDoFn, RejectedOutput, outputs, rejecting
from timebeam.transforms.ingest.encode_group_pack import RowKey
from timebeam.transforms.ingest.row_mutations import mutations, overwriting
from timebeam.transforms.ingest.write_packed_rows import StoreRows
from timebeam.transforms.rollup.changed_hours import ChangedHour, clear_hours, read_changed_hours
from timebeam.transforms.rollup.read_chunk import AccumulateFn, NumberedChunk

FragmentKey = tuple[str, bytes]
"""(table, key of a row or `text_of` a series): the fragments of one key become rows together."""

Fragment = tuple[str, bytes]
"""(aggregator of the group, or SINGLE, and the packed accumulators)."""

SINGLE = ""
"""In place of the aggregator of a group: rollups of single series."""

FRAGMENTS: Final = "pieces"
"""The output of accumulators that a shuffle combines."""

EXISTING: Final = "shared"
"""The output of the ranges whose existing cells the shuffle meets."""

_NEW, _OLD = "data", "standing"  # in step names


class ExistingRange(NamedTuple):
    """The intervals that start in [start_s, end_s), and that the shuffle writes; their cells may exist.

    Attributes:
      uids: of the metrics, in OpenTSDB's layout.
      metric: one of them, all of which have the same aggregators; None for all metrics.
      interval: which of the configuration's, as 1d.
      table: their table; without prefix in OpenTSDB's layout.
    """

    uids: tuple[bytes, ...]
    metric: str | None
    interval: str
    table: str
    start_s: int
    end_s: int
    keys: KeyRange = WHOLE_TABLE


Group = tuple[bytes, list[Fragment]]
"""(key of a row, or `text_of` a series; its fragments, or its row's existing qualifiers)."""


class RollupEncoder(abc.ABC):
    """A rollup whose results are stored in one form.

    Attributes:
      combines_rows: keys of fragments are those of rows. Then `encode` makes mutations, and gets what
        `existing` yields among the fragments.
      encoded_bytes: bytes of fragments that are encoded together.
    """

    combines_rows: ClassVar[bool] = False
    encoded_bytes: ClassVar[int] = 8 << 20
    target: Target

    @property
    @abc.abstractmethod
    def tables(self) -> Sequence[str]:
        """The names of the tables that rows are written to."""

    @abc.abstractmethod
    def chunks(self) -> Iterator[NumberedChunk | ExistingRange]:
        """What is read, and the ranges whose existing cells are replaced after the shuffle."""

    @abc.abstractmethod
    def accumulate(self) -> AccumulateFn:
        """The step that reads chunks."""

    @abc.abstractmethod
    def existing(self, existing: ExistingRange) -> Iterator[tuple[RowKey, Any]]:
        """(row, its existing cells in a range); or `Fragment`s, if it combines rows."""

    @abc.abstractmethod
    def encode(self, table: str, groups: list[Group]) -> Iterator[Any]:
        """(row, something for `row`) of the keys of a table, and rejections; or mutations."""

    def row(self, key: RowKey, encoded: Sequence[Any]) -> Row:
        """The new row of what `encode` made for it; without cells if it made nothing."""
        raise NotImplementedError


def _chunks(_: object, encoder: RollupEncoder) -> Iterator[NumberedChunk | TaggedOutput[Any, ExistingRange]]:
    """The chunks of a rollup; to `EXISTING` the ranges whose existing cells are replaced."""
    for chunk in encoder.chunks():
        if isinstance(chunk, ExistingRange):
            yield TaggedOutput(EXISTING, chunk)
        else:
            metrics.plan_work(1)
            yield chunk


class _EncodeFragmentsFn(BufferedDoFn[tuple[FragmentKey, list[Fragment]]]):
    """(`FragmentKey`, fragments) in; see `RollupEncoder.encode`.

    The keys of one table are encoded together: one by one they take several times as long.
    """

    def __init__(self, encoder: RollupEncoder) -> None:
        self._encoder, self.most_weight = encoder, encoder.encoded_bytes

    def process(self, group: tuple[FragmentKey, Iterable[Fragment]]) -> Iterable[Any]:
        return self.add((group[0], list(group[1])))

    def weight(self, group: tuple[FragmentKey, list[Fragment]]) -> int:
        return sum([len(packed) for _, packed in group[1]])

    def handle(self, groups: list[tuple[FragmentKey, list[Fragment]]]) -> Iterator[Any]:
        by_table: dict[str, list[Group]] = {}
        for (table, key), fragments in groups:
            by_table.setdefault(table, []).append((key, fragments))
        for table, of_table in by_table.items():
            yield from self._encoder.encode(table, of_table)


def _overwrite(
    group: tuple[RowKey, Mapping[str, Iterable[Any]]], encoder: RollupEncoder
) -> Iterator[EncodedRow | RejectedOutput]:
    """The `EncodedRow` that replaces a row, of what is encoded for it and its existing cells."""
    key, inputs = group
    existing = [cell for cells in inputs[_OLD] for cell in cells]
    yield from outputs(mutations([overwriting(encoder.row(key, list(inputs[_NEW])), existing)]))


def add_rollup(
    once: PCollection[Any],
    encoder: RollupEncoder,
    *,
    name: str = "",
    write: bool = True,
) -> list[PCollection[Rejected]]:
    """Adds the steps of a rollup; returns what they reject.

    Args:
      once: any single element.
      name: tells the steps of several rollups apart.
      write: without it the graph ends before the tables.
    """
    in_name = f"[{name}]" if name else ""
    chunks = once | f"Chunks{in_name}" >> beam.FlatMap(_chunks, encoder).with_output_types(
        NumberedChunk
    ).with_outputs(EXISTING, main="main")
    accumulated = (
        chunks.main
        | f"SpreadChunks{in_name}" >> beam.Reshuffle()
        | f"Accumulate{in_name}"
        >> beam.ParDo(encoder.accumulate())
        .with_output_types(EncodedRow)
        .with_outputs(FRAGMENTS, REJECTED, main="main")
    )
    fragments = _typed(accumulated[FRAGMENTS], tuple[FragmentKey, Fragment])
    existing_type: Any = Fragment if encoder.combines_rows else list
    existing = (
        _typed(chunks[EXISTING], ExistingRange)
        | f"SpreadShared{in_name}" >> beam.Reshuffle()
        | f"Standing{in_name}"
        >> beam.FlatMap(encoder.existing).with_output_types(tuple[RowKey, existing_type])
    )
    rejected = [accumulated[REJECTED]]
    if encoder.combines_rows:
        encoded = (
            (fragments, existing)
            | f"Both{in_name}" >> beam.Flatten()
            | f"GroupPerRow{in_name}" >> beam.GroupByKey()
            | f"Encode{in_name}" >> rejecting(_EncodeFragmentsFn(encoder), EncodedRow)
        )
        # In one step, some rows would wait for the others.
        rows = {"WriteAtOnce": accumulated.main, "Write": encoded.main}
    else:
        encoded = (
            fragments
            | f"GroupPerSeries{in_name}" >> beam.GroupByKey()
            | f"Encode{in_name}" >> rejecting(_EncodeFragmentsFn(encoder), tuple[RowKey, Any])
        )
        replaced = (
            {_NEW: encoded.main, _OLD: existing}
            | f"GroupPerRow{in_name}" >> beam.CoGroupByKey()
            | f"Overwrite{in_name}" >> rejecting(_overwrite, EncodedRow, encoder)
        )
        rejected.append(replaced[REJECTED])
        rows = {"Write": replaced.main}
    rejected.append(encoded[REJECTED])
    for step, mutations_ in rows.items() if write else ():
        writer = StoreRows(encoder.target, encoder.tables, "direct")
        rejected.append(mutations_ | f"{step}{in_name}" >> writer)
    return rejected


def _typed(collection: Any, element_type: Any) -> PCollection[Any]:
    """An output of one of these steps, with its element type, which Beam does not infer."""
    collection.element_type = convert_to_beam_type(element_type)
    return collection


def text_of(series: Series) -> bytes:
    """A series as JSON: a deterministic key."""
    return msgspec.json.encode((series.metric, series.tags, series.resources))


def series_of(text: bytes) -> Series:
    """The series of `text_of`."""
    metric, tags, resources = msgspec.json.decode(text)
    return Series(metric, tuple(map(tuple, tags)), tuple(map(tuple, resources)))


def series_fragments(table: str, buckets: Buckets) -> Iterator[TaggedOutput[Any, Any]]:
    """The packed accumulators of each series."""
    for number, packed in packed_series(buckets):
        yield TaggedOutput(FRAGMENTS, ((table, text_of(buckets.series[number])), (SINGLE, packed)))


def is_covered(hour: ChangedHour, part: RollupPart, lengths: Sequence[int], complete_s: int) -> bool:
    """Whether a part writes all intervals of a changed hour that are over.

    Args:
      lengths: of all intervals of the configuration that are written, in s.
      complete_s: hours and intervals that end up to this time, in s, are over.
    """
    if hour.start_s + HOUR_S > complete_s or (part.metrics is not None and hour.metric not in part.metrics):
        return False
    planned = {plan.interval.seconds: plan for plan in part.plan.intervals}
    for length in lengths:
        first_s = floor_to(hour.start_s, length)
        end_s = min(ceil_to(hour.start_s + HOUR_S, length), floor_to(complete_s, length))
        plan = planned.get(length)
        if first_s < end_s and not (plan and plan.start_s <= first_s and end_s <= plan.end_s):
            return False
    return True


def covered_hours(
    _: object,
    target: Target,
    layout: ReadableStore,
    parts: Sequence[RollupPart],
    lengths: Sequence[int],
    complete_s: int,
) -> Iterator[ChangedHour]:
    """The changed hours that a rollup covers; see `is_covered`."""
    for hour in read_changed_hours(target, layout):
        if any(is_covered(hour, part, lengths, complete_s) for part in parts):
            yield hour


def when_complete(once: PCollection[Any], after: PCollection[Any]) -> PCollection[Any]:
    """The same elements, after another collection is complete."""
    return once | "AfterMarks" >> beam.Map(lambda element, _: element, AsIter(after))


def unwritten_metrics(rejected: Sequence[PCollection[Rejected]], layout: ReadableStore) -> PCollection[bytes]:
    """The metrics of rows that Bigtable refused, by their UIDs; empty bytes for all metrics without UIDs."""
    return (
        rejected
        | "Rejected" >> beam.Flatten()
        | "Unwritten" >> beam.FlatMap(_unwritten, layout).with_output_types(bytes)
        | "DistinctUnwritten" >> beam.Distinct()
    )


def _unwritten(rejected: Rejected, layout: ReadableStore) -> Iterator[bytes]:
    """See `unwritten_metrics`."""
    if rejected.reason is not Reason.WRITE_REFUSED:
        return
    with_uids = find_opentsdb(layout)
    if with_uids is None:
        yield b""
        return
    options, key = with_uids.options, row_of(rejected.payload).key
    yield key[options.salt_width : options.salt_width + options.uid_width_metric]


class ClearHoursFn(BufferedDoFn[ChangedHour]):
    """`ChangedHour` in; clears them before the bundle ends, but for those of metrics with unwritten rows."""

    most = 10_000

    def __init__(self, target: Target, layout: ReadableStore) -> None:
        self._target, self._layout = target, layout

    def process(  # type: ignore[override]
        self, hour: ChangedHour, unwritten: Sequence[bytes]
    ) -> Iterable[None]:
        return () if hour.metric in unwritten or b"" in unwritten else self.add(hour)

    def handle(self, hours: list[ChangedHour]) -> Iterable[None]:
        clear_hours(self._target, self._layout, hours)
        return ()
