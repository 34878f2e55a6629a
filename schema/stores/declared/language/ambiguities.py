"""Whether a layout tells readings apart: proved, or refuted by two records that share a cell.

A reading is the value that a record has for a column. It is *of* the fields that tell records apart
(those in the key and the qualifier, `identity`, tags of points), of its time, and of its column. Its
place is the row key and the qualifier; with several versions also the timestamp. A layout is proved if
all that a reading is of follows from its place:

- The bytes of each part follow from the key (`checks` and `KeyPart.render`: widths, padding, separators).
- A field follows from a `field` part, from the qualifier, or from a hash of `SAFE_BITS` of it.
- A bucket follows from the text of its start, and the step in it from the qualifier; a time from a part
  that holds it exactly, or from the timestamps of cells. A layout without time in key and qualifier keeps
  the latest record.
- The column follows from the qualifier: no fixed column is called like a step. Entries of maps and
  readings by field are rejected one by one (`MapColumns.entries`, `write_records.cells`).

For what does not follow, records that differ in it are encoded until two share a cell. Without such a
pair the layout is "not proved", and is rejected too. `allow_overwrite` allows records of one row to
overwrite each other; it does not allow buckets, steps or columns that are not told apart.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa

from timebeam.schema.bits.arrays import Int64s
from timebeam.schema.bits.times import DAY_MS, bucket_starts, sample_starts
from timebeam.schema.stores.declared.columns import Column, TimeQualifier
from timebeam.schema.stores.declared.declaration import CellTime, TableLayout
from timebeam.schema.stores.declared.language.explain_layout import example_record
from timebeam.schema.stores.declared.parts.digest_parts import SAFE_BITS
from timebeam.schema.stores.declared.parts.key_part import Told
from timebeam.schema.stores.declared.parts.time_part import from_ms, one_from_ms, one_to_ms, to_ms
from timebeam.schema.stores.declared.read_section import Path
from timebeam.schema.stores.declared.records import RecordBatch
from timebeam.schema.stores.declared.write_records import layout_rows

_TRIED = 3000
_SAME_CRC32 = ("plumless", "buckeroo")

Fields = Mapping[str, str]
"""The fields of a record, as text."""


@dataclasses.dataclass(frozen=True, slots=True)
class Ambiguity:
    """Readings that a layout does not tell apart, or may not.

    Attributes:
      path: of the option that is at fault.
      text: what is wrong, and what to do.
      witness: two records with different readings in one cell; None if it is only not proved.
    """

    path: Path
    text: str
    witness: tuple[Fields, Fields] | None


def ambiguities(layout: TableLayout, is_rollup: bool = False) -> Iterator[Ambiguity]:
    """What keeps a layout from being proved.

    Args:
      is_rollup: it is filled by a job, so that no two records of one row come; how its key tells intervals
        apart is checked by `timebeam.schema.stores.declared.filled_tables.problems`.
    """
    yield from _buckets(layout)
    form = layout.time_qualifier
    if form is not None:
        yield from _steps(layout, form)
        yield from _columns_like_steps(layout, form)
    if not (is_rollup or layout.allow_overwrite):
        for name in sorted(_told_names(layout)):
            yield from _overwritten(layout, name)


def _buckets(layout: TableLayout) -> Iterator[Ambiguity]:
    """Times in the key whose text is coarser than their bucket; `allow_overwrite` does not speak of these."""
    for number, time in layout.told_times:
        if time.bucket is not None and not time.tells_buckets:
            starts_ms = sample_starts(time.bucket, time.zone)[:_TRIED]
            yield _ambiguity(
                (*_path(layout, "key"), number),
                f"{time.pattern!r} is coarser than the bucket of {time.bucket}, so that the key does not "
                f"tell buckets of {time.name} apart",
                _shared(layout, _at(layout, from_ms(starts_ms, time.unit))),
                "give a longer format or a longer bucket",
            )


def _steps(layout: TableLayout, form: TimeQualifier) -> Iterator[Ambiguity]:
    """Steps that do not lie in their bucket: a reading would come back at a time before it."""
    assert layout.time is not None
    bucket = layout.time.bucket
    assert bucket is not None
    fault = remedy = ""
    if form.step.ms > bucket.ms:
        fault, remedy = f"is longer than the bucket of {bucket}", "a shorter step or a longer bucket"
    elif form.step.ms % DAY_MS == 0 and not bucket.is_local:
        fault = f"is counted from midnight, and buckets of {bucket} do not begin there"
        remedy = "a bucket of whole days or months, or a shorter step"
    if fault:
        path = _path(layout, "columns", "series", "qualifier", "step")
        yield Ambiguity(path, f"a step of {form.step} {fault}: give {remedy}", None)


def _columns_like_steps(layout: TableLayout, form: TimeQualifier) -> Iterator[Ambiguity]:
    """Fixed columns with the qualifier of a reading; `allow_overwrite` does not speak of these."""
    for number, column in enumerate(layout.columns):
        times_ms = _times_called(layout, form, column.qualifier)
        if len(times_ms):
            yield _ambiguity(
                (*_path(layout, "columns", "fields"), number),
                f"the column {column.qualifier.decode()!r} looks like the qualifier of a reading",
                _column_and_reading(layout, column, times_ms),
                "rename it, as { name = ..., qualifier = ... }",
            )


def _times_called(layout: TableLayout, form: TimeQualifier, qualifier: bytes) -> Int64s:
    """int64[n]: times in ms whose readings have this qualifier, one in each bucket of a sample."""
    assert layout.time is not None
    assert layout.time.bucket is not None
    zone = layout.time.zone
    try:
        steps = form.steps_within(layout.time.bucket, qualifier)
    except ValueError:
        return np.zeros(0, np.int64)
    starts_ms = sample_starts(layout.time.bucket, zone)
    times_ms = form.times_after(starts_ms, np.full(len(starts_ms), steps, np.int64), zone)
    inside = bucket_starts(times_ms, layout.time.bucket, zone) == starts_ms
    names, good = form.qualifiers(times_ms, starts_ms, zone)
    return times_ms[inside & good & np.array([name == qualifier for name in names], np.bool_)]


def _column_and_reading(
    layout: TableLayout, column: Column, times_ms: Int64s
) -> tuple[Fields, Fields, str] | None:
    """A record with the column, and one of the same time with the reading in the same cell."""
    assert layout.time is not None
    assert layout.series is not None
    needed = {name for key_part in layout.key for name in key_part.inputs}
    for record in _at(layout, from_ms(times_ms[:_TRIED:100], layout.time.unit)):
        of_column = {name: text for name, text in record.items() if name != layout.series.field}
        of_reading = {name: text for name, text in record.items() if name != column.field or name in needed}
        pair = _shared(layout, [of_column, of_reading])
        if pair is not None:
            return pair
    return None


def _told_names(layout: TableLayout) -> frozenset[str]:
    """The fields that tell records apart; the event time is one if a key or a qualifier has it."""
    tags = layout.points.tags if layout.points is not None else ()
    return layout.stored | {*layout.identity, *tags}


def _overwritten(layout: TableLayout, name: str) -> Iterator[Ambiguity]:
    """The columns that two records with different values of one field would share."""
    by_key = _told_by_key(layout, name)
    if by_key is Told.YES:
        return
    untold = [column for column in layout.columns if not _follows_from_row(layout, column, name)]
    is_dynamic = layout.map is not None or (layout.series is not None and not _in_qualifier(layout, name))
    if not (untold or is_dynamic):
        return
    qualifiers = {column.qualifier for column in untold}
    pair = _shared(layout, _candidates(layout, name), None if is_dynamic else qualifiers)
    in_rows_of_series = layout.series is not None and not is_dynamic
    path, text, remedy = _overwriting(layout, name, by_key, untold[0] if in_rows_of_series else None)
    yield _ambiguity(path, text, pair, f"{remedy}, or say allow_overwrite = true")


def _told_by_key(layout: TableLayout, name: str) -> Told:
    """Whether the key (with the timestamp, where versions of cells are readings) tells a field."""
    is_stamped = layout.max_versions > 1 and layout.cell_time is CellTime.EVENT
    units = ("s", "ms") if layout.time_qualifier is None else ("s", "ms", "us")  # steps are whole ms
    if is_stamped and layout.event in [(name, unit) for unit in units]:
        return Told.YES
    return max(key_part.certainty(name, layout.separator, layout.key) for key_part in layout.key)


def _in_qualifier(layout: TableLayout, name: str) -> bool:
    """Whether the qualifiers of the series tell a field; of the time its step."""
    assert layout.series is not None
    if isinstance(layout.series.qualifier, TimeQualifier):
        return layout.event is not None and name == layout.event[0]
    return layout.series.qualifier == name


def _follows_from_row(layout: TableLayout, column: Column, name: str) -> bool:
    """Whether records of one row that differ in a field lose no value of a fixed column.

    Since a row has one step; or the column holds what is told, or looked at, by itself.
    """
    form, time = layout.time_qualifier, layout.time
    in_steps = form is not None and _in_qualifier(layout, name)
    if in_steps and form and time and time.bucket and form.step.ms >= time.bucket.ms:
        return True  # a row has one step
    if column.field != name:
        return column.field in _told_names(layout) or _told_by_key(layout, column.field) is Told.YES
    return layout.series is not None and _in_qualifier(layout, name)


def _overwriting(
    layout: TableLayout, name: str, by_key: Told, column: Column | None
) -> tuple[Path, str, str]:
    """(path, what is wrong, what to do) for a field that is not told.

    Args:
      column: the first fixed column that is overwritten, where the readings of a series are not.
    """
    if column is not None:
        path = (*_path(layout, "columns", "fields"), layout.columns.index(column))
        text = (
            f"a row has one column {column.qualifier.decode()!r} for all {name}, so that records overwrite it"
        )
        return path, text, f"leave it out, or add {name} to the key"
    number = next((i for i, part in enumerate(layout.key) if name in part.tells), None)
    if by_key is Told.BY_DIGEST:
        path = _path(layout, "key") if number is None else (*_path(layout, "key"), number)
        text = f"{name} is in the key only as a digest, which two records can share"
        apart = "" if layout.separator else " with a separator"
        return path, text, f"add {name} to the key, or take a hash of at least {SAFE_BITS} bits{apart}"
    if number is not None:
        time = layout.time
        bucket = time.bucket if time is not None and time.bucket is not None else "cut"
        text = f"the key cuts {name}, so that records of one {bucket} overwrite each other"
        return (*_path(layout, "key"), number), text, "declare a series with a time in its qualifier"
    option = _path(layout, "identity") if name in layout.identity else _path(layout, "points", "tags")
    text = f"{name} tells events apart, but is neither in the key nor in a qualifier"
    return option, text, "add it to the key"


def _candidates(layout: TableLayout, name: str) -> list[Fields]:
    """Records that differ in one field, or in several that are hashed together."""
    if layout.event is not None and name == layout.event[0]:
        first = int(_base(layout)[name])
        return _at(layout, first + np.arange(_TRIED, dtype=np.int64) * _resolution(layout))
    texts = [*map(str, range(1, _TRIED)), *_SAME_CRC32]
    base = _base(layout)
    candidates: list[Fields] = [{**base, name: text} for text in texts]
    for key_part in layout.key:
        joined = [source.label for source in key_part.open_texts(layout.separator, layout.key)]
        if name in joined:
            candidates += [
                {**base, name: text, other: other_text}
                for other in joined
                if other != name
                for number in range(1, 30)  # a salt of one of them differs for most
                for text, other_text in (("1", f"1{number}"), ("11", f"{number}"), (f"{number}1", "1"))
            ]
    return candidates


def _resolution(layout: TableLayout) -> int:
    """How far times must be apart to be those of two readings: a step in the layout's unit, or 1."""
    assert layout.event is not None
    form = layout.time_qualifier
    return 1 if form is None else max(1, one_from_ms(form.step.ms, layout.event[1]))


def _at(layout: TableLayout, event_times: Int64s) -> list[Fields]:
    """Records of these event times; with revisions that make the timestamps of their cells equal."""
    assert layout.event is not None
    name, unit = layout.event
    base, latest_ms = _base(layout), to_ms(event_times, unit).max(initial=0)
    records: list[Fields] = []
    for time in event_times.tolist():
        revision = {}
        if layout.revision is not None:
            time_ms = one_to_ms(time, unit)
            revision = {layout.revision: str(latest_ms - time_ms)}
        records.append({**base, name: str(time), **revision})
    return records


def _base(layout: TableLayout) -> dict[str, str]:
    """The fields of the example record, at the start of its bucket if qualifiers count from there."""
    example = example_record(layout)
    fields = {name: str(column[0].as_py()) for name, column in example.fields.items()}
    if layout.time_qualifier is not None and layout.time is not None and layout.time.bucket is not None:
        name, unit = layout.time.name, layout.time.unit
        time_ms = to_ms(np.array([int(fields[name])], np.int64), unit)
        start_ms = bucket_starts(time_ms, layout.time.bucket, layout.time.zone)
        fields[name] = str(max(0, int(from_ms(start_ms, unit)[0])))
    return fields


def _shared(
    layout: TableLayout, records: Sequence[Fields], columns: set[bytes] | None = None
) -> tuple[Fields, Fields, str] | None:
    """Two records that share a cell, and the cell in words; None if no two do.

    Args:
      columns: qualifiers of the cells that are looked at; None for all.
    """
    if any(key_part.is_of_record for key_part in layout.key):
        return None  # the digest of a payload depends on how a record is written, not only on its fields
    names = {name for record in records for name in record}
    fields = {name: pa.array([record.get(name) for record in records], pa.string()) for name in names}
    quoted = {} if layout.map is None else {layout.map.field: np.zeros(len(records), np.bool_)}
    batch = RecordBatch(fields, np.zeros(len(records), np.int64), None, quoted)
    rows, rejections = layout_rows(layout, batch)
    accepted = [record for i, record in enumerate(records) if i not in rejections.by_record]
    seen: dict[tuple[bytes, bytes, int], Fields] = {}
    for row, record in zip(rows, accepted, strict=True):
        for cell in row.cells:
            if columns is None or cell.qualifier in columns:
                place = (row.key, cell.qualifier, cell.timestamp_ms if layout.max_versions > 1 else 0)
                other = seen.setdefault(place, record)
                if other != record:
                    return other, record, f"row {row.key!r}, column {cell.qualifier!r}"
    return None


def _ambiguity(path: Path, text: str, pair: tuple[Fields, Fields, str] | None, remedy: str) -> Ambiguity:
    if pair is None:
        return Ambiguity(path, f"{text} (not proved that readings are told apart): {remedy}", None)
    first, other, cell = pair
    differing = sorted(name for name in first.keys() | other.keys() if first.get(name) != other.get(name))
    records = " and ".join(
        ", ".join(f"{name}={record[name]}" if name in record else f"no {name}" for name in differing)
        for record in (first, other)
    )
    return Ambiguity(path, f"{text}: {records} are both {cell}: {remedy}", (first, other))


def _path(layout: TableLayout, *options: str) -> Path:
    return ("layout", layout.name, *options)
