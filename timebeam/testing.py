"""What holds a message format, or a store, to the rules: your own, and ours in the tests of timebeam.

Both raise AssertionError, with the rule and what broke it, and are the same on every run. They import neither
Beam nor Google's clients, and need no Bigtable.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import gc
import itertools
import math
import pickle
import random
import re
import tracemalloc
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from timebeam.schema.bits.arrays import Kind
from timebeam.schema.bits.reasons import Reason, RejectedError
from timebeam.schema.core.contract import Store, pack_row
from timebeam.schema.core.point_fragments import Name
from timebeam.schema.core.points import LAST_MILLISECOND, PointBatch, Series, SeriesKey
from timebeam.schema.core.rejections import Envelope, Origins, Rejected, Stage
from timebeam.schema.core.row_deletion import DeleteRange
from timebeam.schema.core.rows import CELL_BYTES, KEY_BYTES, LAST_MS, QUALIFIER_BYTES, Cell, Row
from timebeam.schema.core.selection import Finding, Scan, Selected, Selection, Severity, UnknownNameError
from timebeam.schema.formats import FORMATS, format_class
from timebeam.schema.formats.base import Framing, Message, MessageFormat, Parsed
from timebeam.schema.formats.linewise import LinewiseFormat
from timebeam.schema.formats.options import FormatOptions
from timebeam.schema.stores import DECLARED, STORES, make_store
from timebeam.schema.stores.opentsdb.uids import uid_table

__all__ = ["check_format", "check_store"]

_NAME = re.compile("[a-z][-a-z0-9]*")
_ARRIVAL, _SOURCE, _OFFSET = 1_700_000_000_000, "gs://bucket/file", 1_000_000
_ODD = (
    *(
        b"",
        b"\n",
        b" \n\r\n \n",
        b"\x00",
        b"\xff" * 9,
        b"\xed\xa0\x80",
        b"{",
        b"[]",
        b"{}",
        b"null",
        b'""',
        b"0",
    ),
    *(
        b"[" * 5_000,
        b'{"a":' * 5_000,
        b"9" * 5_000,
        b"a" * 70_000,
        b"=, " * 5_000,
        b"\n" * 20_000,
        b'"' * 999,
    ),
    *(
        b"1e999 nan inf -0",
        b'{"a":1,"a":2}',
        b'["\\ud800"]',
        b"\x1f\x8b\x08\x00",
        b"\x80" * 5_000,
        bytes(5_000),
    ),
)
_NO_NUMBERS = (b"NaN", b"nan", b"Infinity", b"-Infinity", b"inf", b'"NaN"', b"1e999", b"-1e999", b"1" * 400)
_PEAK, _TIMES_TEXT = 48 << 20, 400
_GROWTH, _VARIANTS = 256 << 10, 20


def check_format(
    form: str | type[MessageFormat],
    samples: Sequence[bytes] = (),
    options: Mapping[str, object] | None = None,
    *,
    rounds: int = 150,
    seed: int = 0,
) -> None:
    """Holds a message format to its rules.

    - `example` gives points and no rejection; with `options`, the first sample does.
    - No bytes make `parse` raise or fail (`internal-error`): changed samples, deep nesting, long lines.
    - A rejection has the source, the arrival and the envelope of its message. In formats of lines its payload
      stands at its offset. Its payload read again is rejected for the same reason, and gives no point
      that the message does not give. (Records of a JSON document that is broken around them may be good
      alone.)
    - Names of points can be written as UTF-8, and their values are finite.
    - Messages read together give what each gives alone. Full caches change nothing. Lines that are read in
      columns give what each of them gives by `records`.
    - Memory is bounded: at most 48 MiB and 400 times a message; caches do not grow beyond `remembered`.

    >>> check_format("kairosdb-text", [b"putm sys.cpu 1356998400123 5 host=web01"], rounds=5)

    Args:
      form: the class, or the name of an installed format.
      samples: messages beside its `example`, good and bad; more of them find more.
      options: its options, by name.
      rounds: the number of changed messages.

    Raises:
      AssertionError: it breaks a rule.
    """
    cls = format_class(form) if isinstance(form, str) else form
    _check_name(cls.name, [*FORMATS, "auto", "records"], cls is not None and cls.__module__)
    checker = _FormatRules(cls, dict(options or {}), random.Random(seed))
    texts = [*samples] if options and samples else [cls.example, *samples]
    checker.example(texts[0])
    changed = [checker.changed(checker.random.choice(texts)) for _ in range(rounds)]
    numbers = [checker.renumbered(text) for text in texts for _ in range(8)]
    for text in (*texts, *_ODD, *numbers, *changed):
        checker.read(text)
    checker.together([*texts, *changed[: rounds // 2]], rounds // 3)
    checker.memory(texts)


def _check_name(name: str, ours: Iterable[str], module: str) -> None:
    assert _NAME.fullmatch(name), f"the name {name!r} is not small letters, digits and -"
    assert name not in ours or module.startswith("timebeam."), f"the name {name} is one of timebeam's own"


class _FormatRules:
    """The rules of one format, with its options."""

    def __init__(self, cls: type[MessageFormat], options: dict[str, object], source: random.Random) -> None:
        self.random, self._cls, self._options = source, cls, options
        self._form, self._small = self._new(), self._new(remembered=2)
        self._slow = _line_by_line(cls)(self._options_of())
        self._is_lines = self._form.framing in (Framing.LINES, Framing.JSON)

    def _new(self, **more: object) -> MessageFormat:
        return self._cls(self._options_of(**more))

    def _options_of(self, **more: object) -> FormatOptions:
        return self._cls.options_class.of({**self._options, **more})

    def example(self, text: bytes) -> None:
        """It holds points, and nothing else."""
        parsed = self._form.parse(_message(text))
        assert len(parsed.batch) or parsed.annotations, f"no point in the example {text[:200]!r}"
        assert not parsed.rejected, f"the example is rejected: {parsed.rejected}"

    def changed(self, text: bytes) -> bytes:
        """A message, changed in one to three places."""
        r, content = self.random, bytearray(text)
        for _ in range(r.randint(1, 3)):
            at, size = r.randrange(len(content) + 1), r.choice((1, 1, 2, 5, 40))
            piece = bytes(content[at : at + size])
            content[at : at + r.choice((0, size))] = r.choice(
                (
                    b"",
                    piece * 2,
                    piece[::-1],
                    r.randbytes(size),
                    *(r.choice(_ODD[:12]),) * 2,
                    b"%d" % -(9 ** r.randint(1, 30)),
                )
            )
        return bytes(content)

    def renumbered(self, text: bytes) -> bytes:
        """A message with another word in the place of a number."""
        places = [each.span() for each in re.finditer(rb"-?[0-9]+(\.[0-9]+)?", text)] or [(0, 0)]
        start, end = self.random.choice(places)
        return text[:start] + self.random.choice(_NO_NUMBERS) + text[end:]

    def read(self, text: bytes) -> None:
        """One message: nothing is raised, and all that is rejected can be found and read again."""
        parsed = self._parse(self._form, text)
        for form, why in ((self._small, "with full caches"), (self._slow, "line by line")):
            again = self._parse(form, text)
            assert _content(parsed) == _content(again), f"{why} other content is read of {text[:200]!r}"
        for rejected in parsed.rejected:
            self._check_rejected(text, parsed, rejected)
        batch = parsed.batch
        assert (batch.kinds <= max(Kind)).all(), "kinds of values"
        floats = batch.bits[batch.kinds == Kind.FLOAT].view(np.float64)
        assert np.isfinite(floats).all(), f"a value is not finite in {text[:200]!r}"
        for series in batch.series:
            for name in (series.metric, *itertools.chain(*series.tags, *series.resources)):
                name.encode()

    def _parse(self, form: MessageFormat, text: bytes) -> Parsed:
        try:
            return form.parse(_message(text))
        except Exception as error:
            raise AssertionError(f"parse raises {type(error).__name__} for {text[:200]!r}") from error

    def _check_rejected(self, text: bytes, parsed: Parsed, rejected: Rejected) -> None:
        assert rejected.reason is not Reason.INTERNAL_ERROR, f"{rejected.message}: {text[:200]!r}"
        place = rejected.source, rejected.arrival_ms, rejected.envelope, rejected.stage
        message = _message(text)
        assert place == (message.source, message.arrival_ms, message.envelope, Stage.PARSE), rejected
        assert rejected.message, f"no message: {rejected}"
        if self._is_lines:
            start = rejected.offset - _OFFSET
            stands = text[start : start + len(rejected.payload)]
            assert stands == rejected.payload, f"not at its offset: {rejected}"
        if self._form.framing is Framing.AVRO:  # a record is no file
            return
        if self._form.framing is Framing.JSON and rejected.reason is Reason.BAD_SYNTAX:  # of the document
            return
        again = self._form.parse(
            dataclasses.replace(message, text=rejected.payload, records=rejected.records)
        )
        reasons = {each.reason for each in again.rejected}
        assert rejected.reason in reasons, f"read again it is {reasons or 'good'}: {rejected}"
        known = {point[:5] for point in points_of(parsed.batch)}
        assert known.issuperset(point[:5] for point in points_of(again.batch)), f"more points: {rejected}"

    def together(self, texts: Sequence[bytes], rounds: int) -> None:
        """Messages together give what each gives alone."""
        for _ in range(rounds):
            chosen = self.random.choices(texts, k=self.random.randint(1, 9))
            messages = [
                Message(text, 1000 + number, _SOURCE, 0, Envelope(str(number), 1, {}))
                for number, text in enumerate(chosen)
            ]
            alone = [self._form.parse(message) for message in messages]
            together = list(self._form.parse_all(messages))
            one_by_one = [_records(parsed, message) for parsed, message in zip(alone, messages, strict=True)]
            expected = sorted(itertools.chain(*one_by_one), key=repr)
            assert expected == sorted(itertools.chain(*map(_records, together)), key=repr), (
                f"messages together are read in another way: {[text[:80] for text in chosen]}"
            )
            for parsed, message in zip(alone, messages, strict=True):
                arrivals = {
                    *parsed.batch.arrivals_ms.tolist(),
                    *(each.arrival_ms for each in parsed.rejected),
                }
                assert arrivals <= {message.arrival_ms}, "arrivals are not those of the message"

    def memory(self, texts: Sequence[bytes]) -> None:
        """What reading takes, and what caches keep."""
        form, long = self._new(remembered=10), texts
        if self._is_lines:
            long = [b"\n".join([text] * (100_000 // (len(text) + 1) + 1)) for text in texts]
        tracemalloc.start()
        try:
            for text in (*long, *_ODD):
                tracemalloc.reset_peak()
                before = tracemalloc.get_traced_memory()[0]
                form.parse(_message(text))
                peak = tracemalloc.get_traced_memory()[1] - before
                assert peak <= _PEAK + _TIMES_TEXT * len(text), f"{peak} bytes of memory for {text[:80]!r}"
            kept = []
            for _ in range(3):
                for text in itertools.chain(*itertools.repeat(texts, _VARIANTS)):
                    form.parse(_message(self._renamed(text)))
                gc.collect()
                kept.append(tracemalloc.get_traced_memory()[0])
            growth = kept[2] - kept[1]
            assert growth <= _GROWTH, f"{len(texts) * _VARIANTS} messages leave {growth} bytes in caches"
        finally:
            tracemalloc.stop()

    def _renamed(self, text: bytes) -> bytes:
        """A message with other small letters, so with other series."""
        return re.sub(rb"[a-z]", lambda _: b"%c" % self.random.randrange(97, 123), text)


def _message(text: bytes) -> Message:
    return Message(text, _ARRIVAL, _SOURCE, _OFFSET, Envelope("1", _ARRIVAL, {"a": "b"}))


def points_of(batch: PointBatch) -> list[tuple[object, ...]]:
    """The points of a batch, with the kind and the bits of each value."""
    columns = (batch.index, batch.times_ms, batch.in_ms, batch.kinds, batch.bits, batch.arrivals_ms)
    found = zip(*(column.tolist() for column in columns), strict=True)
    return [
        (
            batch.series[number],
            *rest[:3],
            batch.payloads[rest[3]] if rest[2] >= Kind.TEXT else rest[3],
            rest[4],
        )
        for number, *rest in found
    ]


def _content(parsed: Parsed) -> object:
    return points_of(parsed.batch), list(parsed.rejected), list(parsed.annotations), +Counter(parsed.skipped)


def _records(parsed: Parsed, alone: Message | None = None) -> Iterator[object]:
    """All that is known of each point, edit and rejection; the place of a point by a rejection of it.

    Args:
      alone: the message that was parsed alone: its points do not know it.
    """
    for number, point in enumerate(points_of(parsed.batch)):
        (at,) = parsed.batch.reject(
            np.array([number]), lambda _: RejectedError(Reason.BAD_TAG, "why"), Stage.ENCODE
        )
        yield point, at.payload, at.offset, alone.envelope if alone else at.envelope, at.arrival_ms
    yield from parsed.annotations
    yield from parsed.rejected


def _line_by_line(cls: type[MessageFormat]) -> type[MessageFormat]:
    """A format that reads no line in columns, if it reads lines: the reference for columns."""
    if not issubclass(cls, LinewiseFormat):
        return cls
    return type(cls.__name__, (cls,), {"columnar": LinewiseFormat.columnar})


def check_store(
    store: str | Store, options: Mapping[str, object] | None = None, *, rounds: int = 12, seed: int = 0
) -> None:
    """Holds a store to its rules, with tables in memory.

    - It can be pickled; its tables have names and families; one of them holds points.
    - Points that it takes are read back: of each series and time the latest arrival, the last of equal
      arrivals. Others are rejected, and counted; whatever the names, times and values are, nothing is raised.
    - The cells of a row are a function of its points: the same in any order of the fragments, and again.
    - Keys, qualifiers, values and timestamps are within Bigtable's limits; families are those of the table.
    - A selection gives the series and times that it asks for, and the rows of a series in the order of time.
    - Rows may be split at `cut_at`: at or before the key, in the order of keys.
    - `hours`, `remove`, `restore`, `audit` and the index, if it has one, agree with the points.
    - Corrupt cells and keys raise nothing but what is documented, and are reported.

    >>> check_store("kairosdb", {"row_spec": "milliseconds"}, rounds=2)

    Args:
      store: the store, or the name of an installed one.
      options: its options by name, if `store` is a name.
      rounds: the number of sets of points.

    Raises:
      AssertionError: it breaks a rule.
    """
    made = make_store(store, options or {}) if isinstance(store, str) else store
    _check_name(made.name, [*STORES, DECLARED], type(made).__module__)
    assert pickle.loads(pickle.dumps(made)) == made, "a pickled store is another one"
    specs = {spec.name: spec for spec in made.tables()}
    assert len(specs) == len(made.tables()), "two tables have one name"
    assert made.tables()[0].holds_points, "the first table holds no points"
    for number in range(rounds):
        _StoreRules(made, random.Random(f"{seed} {number}")).check()


_NAMES = (
    "sys.load",
    "sys.cpu",
    "m",
    "a_b",
    "a-b/c",
    "mém",
    "x=y",
    "x,y",
    "x:y",
    "x#y",
    "x|y",
    "x;y",
    "",
    "\0",
    "é" * 40,
    "😀",
)
_LONG = "n" * 5_000
_VALUES = (
    0,
    1,
    -1,
    42,
    255,
    -129,
    70_000,
    2**31,
    2**53,
    -(2**62),
    2**63 - 1,
    0.0,
    0.5,
    -1.25,
    3.14,
    1e300,
    1e-300,
)
_UNSURE = (math.nan, math.inf, -math.inf, "text")

_STARTS = (0, 1_814_400_000 - 1, (1 << 32) - 1, LAST_MILLISECOND - 3_600_000)
_ORDERED_MS = 10**12  # from 2001 on: text in keys has 13 digits

Place = tuple[Series, int]
"""A series and a time in ms."""


def _beyond(series: Series, arrival_ms: int) -> PointBatch:
    """Points that hardly any store takes."""
    times_ms = -1, LAST_MILLISECOND + 1, 1 << 60, -(1 << 60)
    odd = [(series, time_ms, True, number) for number, time_ms in enumerate(times_ms)]
    return PointBatch.of([*odd, (series, 1000, False, b"bytes")], arrival_ms)


class _Tables:
    """Rows in memory, the newest cell of each column; a `Reader`."""

    def __init__(self) -> None:
        self.tables: dict[str, dict[bytes, dict[tuple[str, bytes], Cell]]] = {}

    def write(self, row: Row) -> None:
        columns = self.tables.setdefault(row.table, {}).setdefault(row.key, {})
        for family, qualifier, before_ms in row.deleted:
            found = columns.get((family, qualifier))
            if found is not None and (before_ms is None or found.timestamp_ms < before_ms):
                del columns[family, qualifier]
        for cell in row.cells:
            found = columns.get((cell.family, cell.qualifier))
            if found is None or found.timestamp_ms <= cell.timestamp_ms:
                columns[cell.family, cell.qualifier] = cell
        if not columns:
            del self.tables[row.table][row.key]

    def scan(self, scan: Scan) -> Iterator[Row]:
        pattern = re.compile((scan.key_pattern or rb"\C*").replace(rb"\C", b"."), re.DOTALL)
        for start, end in scan.ranges:
            for key in sorted(self.tables.get(scan.table, {})):
                if start <= key and (not end or key < end) and pattern.fullmatch(key):
                    cells = [
                        cell._replace(value=b"") if scan.keys_only else cell
                        for (family, qualifier), cell in sorted(self.tables[scan.table][key].items())
                        if scan.columns is None
                        or (
                            (family == scan.columns.family and scan.columns.start <= qualifier)
                            and (not scan.columns.end or qualifier < scan.columns.end)
                        )
                    ]
                    if cells:
                        yield Row(scan.table, key, cells)

    def rows(self, table: str, keys: Sequence[bytes]) -> dict[bytes, Row]:
        return {row.key: row for row in self.read(table) if row.key in {*keys}}

    def read(self, table: str) -> Iterator[Row]:
        return self.scan(Scan(table, [(b"", b"")]))


class _StoreRules:
    """The rules of a store, with one set of random points."""

    def __init__(self, store: Store, source: random.Random) -> None:
        self._store, self._random, self._tables = store, source, _Tables()
        self._uids: dict[Name, bytes] = {}
        self._keys: dict[Series, SeriesKey] = {}
        self._points: dict[Place, tuple[int, object]] = {}  # (arrival, value)
        self._packing = source.choice([*store.writing.packings])

    def check(self) -> None:
        if self._store.writing.read_only:
            return
        series = self._series()
        fragments: dict[tuple[str, bytes], list[bytes]] = collections.defaultdict(list)
        for number in range(self._random.randint(1, 4)):
            for row, packed in self._encoded(series, 1000 + number).items():
                fragments[row] += packed
        for row, packed in fragments.items():
            self._write(*row, packed)
        self._check_selections()
        self._check_rows()
        self._check_corrupt()
        self._check_removed()

    def _series(self) -> list[Series]:
        """Some series that can be stored, of names of all kinds."""
        r, found = self._random, []
        for metric in [*r.sample(_NAMES, 5), "sys.load", "sys.cpu", _LONG]:
            tags = {r.choice(_NAMES): r.choice([*_NAMES, _LONG]) for _ in range(r.randint(0, 4))}
            for each in (Series.of(metric, tags), Series.of(metric, {"host": r.choice("abc")})):
                rejected = self._store.reject(each)
                assert rejected is None or isinstance(rejected, RejectedError), (
                    "reject gives an error or None"
                )
                if rejected is None and self._has_uids(each):
                    found.append(each)
        assert any(each.metric == "sys.load" for each in found), "sys.load{host=a} is rejected"
        for each in found:
            self._keys[each] = self._store.series_key(each, self._uids_of(each))
        return found

    def _has_uids(self, series: Series) -> bool:
        """Whether names that are stored as UIDs can be rows of the table of UIDs."""
        names = self._store.uids.names(series) if self._store.uids else ()
        return all(uid_table.row_key(name.text) is not None for name in names)

    def _uids_of(self, series: Series) -> Mapping[Name, bytes]:
        """UIDs of the names of a series; new ones go into the table of UIDs as a TSD writes them."""
        spec = self._store.uids
        names = spec.names(series) if spec else ()
        for name in names:
            if spec is None or name in self._uids:
                continue
            uid = self._uids[name] = uid_table.uid_bytes(len(self._uids) + 1, spec.widths[name.kind])
            column, key = name.kind.encode(), uid_table.name_bytes(name.text)
            last = len(self._uids).to_bytes(8, "big")
            for row_key, family, content in (
                (key, uid_table.ID_FAMILY, uid),
                (uid, uid_table.NAME_FAMILY, key),
                (uid_table.COUNTER_ROW, uid_table.ID_FAMILY, last),
            ):
                self._tables.write(Row(spec.table, row_key, [Cell(family, column, 0, content)]))
        return {name: self._uids[name] for name in names}

    def _batch(self, series: Sequence[Series], arrival_ms: int) -> PointBatch:
        r = self._random
        starts = [r.randrange(0, 1 << 41), 1_356_998_400_000, r.choice(_STARTS)]
        points = []
        for _ in range(r.choice((1, 5, 60))):
            time_ms = r.choice(starts) + r.choice(
                (0, 1, 999, 1000, 3_599_999, 3_600_000, r.randrange(5_000_000))
            )
            time_ms = min(time_ms, LAST_MILLISECOND)
            value = r.choice(_VALUES if r.random() < 0.95 else _UNSURE)
            points.append((r.choice(series), time_ms, time_ms % 1000 != 0, value))
        n = len(points)
        spans = np.arange(n), np.arange(n) + 1
        return PointBatch.of(points, arrival_ms, Origins(bytes(n), *spans, "source", arrival_ms))

    def _encoded(self, series: Sequence[Series], arrival_ms: int) -> dict[tuple[str, bytes], list[bytes]]:
        """The fragments of a batch by row; what is good of it goes into the points to expect."""
        self._store.encode(_beyond(series[0], arrival_ms), [self._keys[series[0]]])
        batch = self._batch(series, arrival_ms)
        keys = [self._keys[each] for each in batch.series]
        encoded, again = self._store.encode(batch, keys), self._store.encode(batch, keys)
        assert encoded.by_row() == again.by_row(), "encoded again, a batch has other fragments"
        assert len(encoded.by_row()) == len(encoded.fragments), "a batch has two fragments of one row"
        lost = {rejected.offset - arrival_ms for rejected in encoded.rejected}
        assert all(rejected.stage is Stage.ENCODE for rejected in encoded.rejected), "a stage of rejections"
        kept = [number for number in range(len(batch)) if number not in lost]
        for number, (each, time_ms, value) in enumerate(batch.points()):
            is_usual = 0 < time_ms < 1 << 41 and isinstance(value, int | float) and abs(value) < 2**53
            assert number not in lost or not is_usual, f"{each} {time_ms} ms {value!r} is rejected"
            if number not in lost:
                self._points[each, time_ms] = arrival_ms, value
        stored = batch.take(np.array(kept, np.int64))
        places = set(zip(stored.index.tolist(), stored.times_ms.tolist(), strict=True))
        assert encoded.duplicates == len(kept) - len(places), "the number of duplicates"
        if self._store.index is not None:
            for number, base_ms in self._store.index.entries(stored):
                for row in self._store.index.rows(stored.series[number], base_ms):
                    self._tables.write(row)
        return encoded.by_row()

    def _write(self, table: str, key: bytes, packed: list[bytes]) -> None:
        row = pack_row(self._store, table, key, packed, self._packing)
        self._random.shuffle(packed)
        assert pack_row(self._store, table, key, packed, self._packing) == row, "cells depend on the order"
        (spec,) = (spec for spec in self._store.tables() if spec.name == table)
        assert len(key) <= KEY_BYTES, f"a key of {len(key)} bytes"
        assert not self._store.key_error(key), f"key_error of a written key: {self._store.key_error(key)}"
        for cell in row.cells:
            assert cell.family in spec.families, f"family {cell.family} is not of table {table}"
            assert len(cell.qualifier) <= QUALIFIER_BYTES, "a long qualifier"
            assert len(cell.value) <= CELL_BYTES, "a long value"
            assert 0 <= cell.timestamp_ms <= LAST_MS, f"timestamp {cell.timestamp_ms} ms"
        self._tables.write(row)

    def _read(self, selection: Selection) -> dict[Place, tuple[int, object]]:
        """The points of a selection, after checks of the order of rows."""
        found: dict[Place, tuple[int, object]] = {}
        several = self._store.several_rows(selection, self._tables)
        last: dict[Series, int] = {}
        for selected in self._select(selection):
            decoded = self._store.decode_rows([selected])
            assert not decoded.corruption, f"a written row is corrupt: {decoded.corruption[0][1]}"
            times_ms = decoded.batch.times_ms.tolist()
            assert times_ms == sorted(set(times_ms)), "the points of a row are not ascending in time"
            is_free = selected.series in several or not times_ms or times_ms[0] < _ORDERED_MS
            assert is_free or times_ms[0] > last.get(selected.series, -1), (
                f"the rows of {selected.series} are not in the order of time"
            )
            last[selected.series] = max([last.get(selected.series, -1), *times_ms])
            arrivals_ms = decoded.batch.arrivals_ms.tolist()
            for (series, time_ms, value), arrival_ms in zip(decoded.batch.points(), arrivals_ms, strict=True):
                inside = selection.start_ms <= time_ms <= selection.end_ms
                if inside and arrival_ms >= found.get((series, time_ms), (-1, 0))[0]:
                    found[series, time_ms] = arrival_ms, value
        return found

    def _select(self, selection: Selection) -> list[Selected]:
        try:
            rows = list(self._store.select(selection, self._tables))
        except UnknownNameError:
            return []
        for selected in rows:
            assert isinstance(selected, Selected), f"a finding about what was written: {selected}"
            assert selection.takes(selected.series), f"{selected.series} is not selected by {selection}"
        return [selected for selected in rows if isinstance(selected, Selected)]

    def _check_selections(self) -> None:
        self._agrees(_EVERYTHING)
        r = self._random
        for series, time_ms in r.sample(sorted(self._points), min(4, len(self._points))):
            tags = dict(r.sample(series.tags, r.randint(0, len(series.tags))))
            others = [value for each, _ in self._points for _, value in each.tags]  # names that are known
            values = {
                key: frozenset(r.choice(((), (value,), (value, r.choice(others)))))
                for key, value in tags.items()
            }
            width_ms = r.choice((0, 10, 3_600_000, 1 << 42))
            start_ms = max(0, time_ms - r.randint(0, width_ms))
            metric = r.choice((series.metric, series.metric, None))
            self._agrees(Selection(metric, values, start_ms, time_ms + width_ms, r.random() < 0.3))
        self._agrees(Selection("sys.other", {}, 0, 1 << 42))

    def _agrees(self, selection: Selection) -> None:
        """A selection gives its points, with their arrivals."""
        expected = {
            place: content
            for place, content in self._points.items()
            if selection.takes(place[0]) and selection.start_ms <= place[1] <= selection.end_ms
        }
        found = self._read(selection)
        lacking, surplus = [*expected.keys() - found.keys()][:2], [*found.keys() - expected.keys()][:2]
        assert not lacking, f"{selection} lacks {lacking}"
        assert not surplus, f"{selection} has {surplus}"
        for place, (arrival_ms, value) in expected.items():
            assert found[place][0] >= arrival_ms, f"{place} has arrival {found[place][0]}, not {arrival_ms}"
            assert self._is_same(found[place][1], value), f"{place} has {found[place][1]!r}, not {value!r}"

    def _is_same(self, stored: object, value: object) -> bool:
        """Whether a store may give one value for another: a float for an integer, or a narrower float."""
        if not isinstance(value, int | float) or not isinstance(stored, int | float):
            return stored == value
        if stored == value or (math.isnan(value) and math.isnan(stored)) or stored == float(value):
            return True
        narrow = self._store.writing.stored_floats(np.array([value], np.float64)).item()
        return bool(stored == narrow)

    def _check_rows(self) -> None:
        store, selected = self._store, self._select(_EVERYTHING)
        together = store.decode_rows(selected)
        one_by_one = [point for each in selected for point in points_of(store.decode_rows([each]).batch)]
        assert sorted(points_of(together.batch), key=repr) == sorted(one_by_one, key=repr), (
            "rows decoded together"
        )
        keys = sorted(each.row.key for each in selected)
        cuts = [store.cut_at(key) for key in keys]
        assert all(cut <= key for cut, key in zip(cuts, keys, strict=True)), "cut_at is behind a key"
        assert cuts == sorted(cuts), "cut_at changes the order of keys"
        metrics = {name: uid for (_, name), uid in self._uids.items() if _ == "metrics"}
        for row, series, _ in selected:
            restored = store.restore(row, self._tables)
            assert not restored.rest.cells, "restore leaves cells of a row of points"
            assert len(restored.points) == len(store.decode_rows([Selected(row, series)]).batch), (
                "restored points"
            )
        qualifiers = b"".join(cell.qualifier for each in selected for cell in each.row.cells)
        hours = store.hours(
            [each.row.key for each in selected], [len(each.row.cells) for each in selected], qualifiers
        )
        expected = {
            (metrics[series.metric] if store.uids else series.metric.encode(), time_ms // 3_600_000 * 3600)
            for series, time_ms in self._points
        }
        assert hours == expected, f"hours differ: {[*hours ^ expected][:2]}"
        corrupt = [each for each in store.audit(self._tables.read) if each.severity is Severity.CORRUPT]
        assert not corrupt, f"audit finds corruption: {corrupt[0]}"
        if store.index is not None:
            listed = {series for series, _ in store.index.series(None, self._tables)}
            assert listed == {series for series, _ in self._points}, "the index lists other series"

    def _check_corrupt(self) -> None:
        r, store, broken = self._random, self._store, _Tables()
        for row, series, _ in r.sample(self._select(_EVERYTHING), min(6, len(self._points), 6) and 1):
            cells = [self._broken(cell) for cell in row.cells for _ in range(3)]
            corrupt = Row(row.table, row.key, cells)
            store.decode_rows([Selected(corrupt, series)])
            broken.write(corrupt)
            for key in (
                row.key[:-1],
                row.key + b"x",
                row.key[:3],
                b"",
                b"\xff" * 9,
                r.randbytes(len(row.key)),
            ):
                assert isinstance(store.key_error(key), str), "key_error gives a text"
                broken.write(Row(row.table, key, row.cells))
        for name, rows in broken.tables.items():
            for row in [Row(name, key, [*columns.values()]) for key, columns in rows.items()]:
                with contextlib.suppress(ValueError):
                    store.restore(row, self._tables)
        findings = list(store.audit(broken.read))
        assert all(isinstance(each, Finding) for each in findings), "audit gives findings"
        assert any(each.severity is Severity.CORRUPT for each in findings) or not broken.tables, (
            "nothing is found"
        )

    def _broken(self, cell: Cell) -> Cell:
        r = self._random
        texts = b"", cell.value[:-1], cell.value + b"\xff", r.randbytes(len(cell.value)), r.randbytes(3)
        qualifiers = b"", cell.qualifier[:-1], cell.qualifier + b"\0", r.randbytes(len(cell.qualifier))
        return r.choice((cell._replace(value=r.choice(texts)), cell._replace(qualifier=r.choice(qualifiers))))

    def _check_removed(self) -> None:
        r = self._random
        if not self._points:
            return
        series, time_ms = r.choice(sorted(self._points))
        first_ms, last_ms = time_ms - r.choice((0, 1000, 1 << 42)), time_ms + r.choice((0, 1000))
        selection, count = Selection(series.metric, {}, max(0, first_ms), last_ms), 0
        for selected in self._select(selection):
            removal = self._store.remove(selected, DeleteRange(first_ms, last_ms, newest_ms=1 << 50))
            if removal is not None:
                count += removal.points
                self._tables.write(removal.mutation)
        gone = {
            place
            for place in self._points
            if place[0].metric == series.metric and first_ms <= place[1] <= last_ms
        }
        assert count >= len(gone), f"{count} points are removed, not {len(gone)}"
        for place in gone:
            del self._points[place]
        self._agrees(_EVERYTHING)


_EVERYTHING = Selection(None, {}, 0, LAST_MILLISECOND)
