"""Names that OpenTSDB accepts, the UID table, which maps names to UIDs, and a cache of what UIDs mean.

Format: docs/spec/opentsdb.md §1.3 (core/Tags.validateString and checkMetricAndTags) and §5.1. The table
also holds the counters:

| row | family | qualifier | value |
|---|---|---|---|
| name, ISO-8859-1 | `id` | `metrics`, `tagk`, `tagv` | UID |
| UID | `name` | the same | name |
| one zero byte | `id` | the same | highest id so far, 8 bytes, signed |
"""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Generic, TypeVar

from timebeam.schema.bits.lru_cache import LruCache
from timebeam.schema.bits.reasons import Reason, RejectedError
from timebeam.schema.core.point_fragments import Name
from timebeam.schema.core.points import Series
from timebeam.schema.core.rows import KEY_BYTES, Row
from timebeam.schema.core.selection import (
    AmbiguousNameError,
    ArchiveRead,
    ColumnRange,
    Finding,
    Reader,
    Scan,
    Selected,
    prefix_range,
    row_findings,
)
from timebeam.schema.stores.opentsdb.keys import UidPair, tsuid_pairs
from timebeam.schema.stores.opentsdb.options import Names, OpenTsdbOptions

_PLAIN = re.compile(r"[a-zA-Z0-9\-_./]+")


def reject_series(series: Series, max_tags: int, form: Names = Names.REFUSE) -> RejectedError | None:
    """Why a series cannot be stored, or None if it can; its names are stored in this form."""
    try:
        if series.resources:
            raise RejectedError(Reason.SERIES_NOT_STORABLE, "OpenTSDB has no resources: send them as tags")
        if not series.tags:
            raise RejectedError(Reason.NO_TAGS, "Missing tags: give at least one")
        if len(series.tags) > max_tags:
            raise RejectedError(
                Reason.TOO_MANY_TAGS, f"Too many tags: {len(series.tags)} maximum allowed: {max_tags}"
            )
        names = [series.metric, *itertools.chain.from_iterable(series.tags)]
        if all(names) and _PLAIN.fullmatch("".join(names)):
            return None  # such names are legal in every form
        _check(form.stored(series.metric), "metric name", Reason.BAD_METRIC)
        for key, value in series.tags:
            _check(form.stored(key), f"tag name with value [{value}]", Reason.BAD_TAG)
            _check(form.stored(value), f"tag value with key [{key}]", Reason.BAD_TAG)
        if form is Names.REPLACE and len({form.stored(key) for key, _ in series.tags}) < len(series.tags):
            raise RejectedError(Reason.DUPLICATE_TAG, f"two tag names become equal, see names: {series}")
    except RejectedError as error:
        return error
    return None


def check_name(kind: str, name: str) -> None:
    """Raises RejectedError if OpenTSDB does not allow a name, as it is stored, or cannot store it."""
    role = {"metrics": "metric name", "tagk": "tag name", "tagv": "tag value"}[kind]
    _check(name, role, Reason.BAD_METRIC if kind == "metrics" else Reason.BAD_TAG)
    if row_key(name) is None:
        text = f"Invalid {role}: {len(name)} characters, more than the {KEY_BYTES} of a row key"
        raise RejectedError(Reason.NAME_NOT_STORABLE, text)


def _check(name: str, role: str, reason: Reason) -> None:
    """Checks that a name is legal and fits ISO-8859-1.

    A TSD stores characters above U+00FF as `?`, which makes different names equal: rejected here.

    Raises:
      RejectedError: `reason`, or NAME_NOT_STORABLE.
    """
    if _PLAIN.fullmatch(name):
        return
    if not name:
        raise RejectedError(reason, f"Invalid {role}: empty string")
    for character in name:
        if not (_PLAIN.fullmatch(character) or (character.isalpha() and ord(character) <= 0xFFFF)):
            raise RejectedError(reason, f'Invalid {role} ("{name[:80]}"): illegal character: {character}')
        if ord(character) > 0xFF:
            raise RejectedError(
                Reason.NAME_NOT_STORABLE,
                f'Invalid {role} ("{name[:80]}"): names are stored as ISO-8859-1, which has no {character}',
            )


KINDS = ("metrics", "tagk", "tagv")
ID_FAMILY = "id"
NAME_FAMILY = "name"
COUNTER_ROW = b"\x00"


def name_bytes(name: str) -> bytes:
    """A name as it is stored.

    Raises:
      UnicodeEncodeError: it has a character that ISO-8859-1 has not.
    """
    return name.encode("iso-8859-1")


def row_key(name: str) -> bytes | None:
    """The row of a name; None for a name that cannot be stored, which a query may still ask for."""
    try:
        key = name_bytes(name)
    except UnicodeEncodeError:
        return None
    return None if key in (b"", COUNTER_ROW) or len(key) > KEY_BYTES else key


def name_text(raw: bytes) -> str:
    """A stored name."""
    return raw.decode("iso-8859-1")


def last_id(width: int) -> int:
    """The highest id that fits a UID of `width` bytes; ids of 8 bytes are signed."""
    return (1 << (8 * width)) - 1 if width < 8 else (1 << 63) - 1


def uid_bytes(number: int, width: int) -> bytes:
    """The UID of an id (core/UniqueId.UniqueIdAllocator).

    >>> uid_bytes(1, width=3).hex(), uid_bytes(70_000, width=4).hex()
    ('000001', '00011170')

    Raises:
      ValueError: it does not fit.
    """
    if not 0 < number <= last_id(width):
        raise ValueError(f"id {number} does not fit {width} bytes")
    return number.to_bytes(width, "big")


def look_up(table: str, names: Iterable[Name], reader: Reader) -> dict[Name, bytes]:
    """The UIDs of the names that have one."""
    stored = {name: key for name in names if (key := row_key(name.text)) is not None}
    rows = reader.rows(table, sorted(set(stored.values())))
    uid_of = {}
    for name, key in stored.items():
        row = rows.get(key)
        for cell in row.cells if row else ():
            if (cell.family, cell.qualifier) == (ID_FAMILY, name.kind.encode()):
                uid_of[name] = cell.value
    return uid_of


_CACHED = 1_000_000

Meaning = TypeVar("Meaning")


def look_up_shown(options: OpenTsdbOptions, names: Iterable[Name], reader: Reader) -> dict[Name, bytes]:
    """As `look_up`, for names as users write them."""
    stored: dict[Name, Name] = {}
    for name in names:
        with contextlib.suppress(UnicodeEncodeError):  # half a surrogate pair, which no name has
            stored[name] = name._replace(text=options.names.stored(name.text))
    uid_of = look_up(options.uid_table, stored.values(), reader)
    return {name: uid_of[stored_name] for name, stored_name in stored.items() if stored_name in uid_of}


def names_from(
    options: OpenTsdbOptions, kind: str, start: str, reader: Reader
) -> Iterator[tuple[str, bytes]]:
    """(name, UID) of the names of a kind that begin with `start`, ascending by their stored bytes.

    For an empty `start` a TSD asks for `!` to `~`; here names that begin beyond ASCII are included.

    Raises:
      UnicodeEncodeError: no name can begin with `start`, since names are stored as ISO-8859-1.
    """
    form = options.names
    first = name_bytes(form.stored(start) if form is Names.ESCAPE else start)
    column = ColumnRange(ID_FAMILY, kind.encode(), kind.encode() + b"\x00")
    for row in reader.scan(Scan(options.uid_table, [prefix_range(first)], columns=column)):
        if row.key != COUNTER_ROW:
            yield form.shown(name_text(row.key)), row.cells[0].value


def read_names(options: OpenTsdbOptions, uids: Collection[UidPair], reader: Reader) -> dict[UidPair, str]:
    """The names, as they are shown, of the UIDs that have one; reads all rows together."""
    rows = reader.rows(options.uid_table, sorted({uid for _, uid in uids}))
    column_of = {kind: (NAME_FAMILY, kind.encode()) for kind in KINDS}
    shown, text = options.names.shown, name_text
    return {
        (kind, uid): shown(text(cell.value))
        for kind, uid in uids
        if uid in rows
        for cell in rows[uid].cells
        if cell[:2] == column_of[kind]
    }


class UidCache(Generic[Meaning]):
    """What UIDs mean, each read once. Not for threads.

    Args:
      read: what UIDs mean, without those for which to ask again.
    """

    def __init__(self, read: Callable[[Collection[UidPair]], dict[UidPair, Meaning]]) -> None:
        self._read = read
        self._cached: LruCache[UidPair, Meaning] = LruCache(_CACHED)

    def resolve(self, uids: Iterable[UidPair]) -> dict[UidPair, Meaning]:
        """What is known of UIDs; reads all that are not cached together."""
        distinct = set(uids)
        known = {pair: meaning for pair in distinct if (meaning := self._cached.get(pair)) is not None}
        missing = distinct.difference(known)
        for pair, meaning in self._read(missing).items() if missing else ():
            known[pair] = self._cached[pair] = meaning
        return known


class UidDirectory(UidCache[str]):
    """The names of UIDs, as they are shown, and the series of TSUIDs."""

    def __init__(self, options: OpenTsdbOptions, reader: Reader) -> None:
        super().__init__(lambda uids: read_names(options, uids, reader))
        self._options = options

    def series(self, tsuids: Iterable[bytes]) -> dict[bytes, Series | str]:
        """The series of each TSUID, or why it has none; reads all UIDs together."""
        series: dict[bytes, Series | str] = {}
        pairs: dict[bytes, Sequence[UidPair]] = {}
        for tsuid in tsuids:
            try:
                pairs[tsuid] = tsuid_pairs(self._options, tsuid)
            except ValueError as error:
                series[tsuid] = str(error)
        name_of = self.resolve(pair for uids in pairs.values() for pair in uids)
        for tsuid, uids in pairs.items():
            nameless = [pair for pair in uids if pair not in name_of]
            if nameless:
                series[tsuid] = why_nameless(nameless[0])
            else:
                metric, *tags = [name_of[pair] for pair in uids]
                series[tsuid] = Series.of(metric, dict(zip(tags[::2], tags[1::2], strict=True)))
        return series

    def nameless(self, tsuids: Iterable[bytes]) -> dict[bytes, UidPair]:
        """The first UID without a name of each TSUID that has one; reads all UIDs together.

        Raises:
          ValueError: it is no TSUID.
        """
        pairs = {tsuid: tsuid_pairs(self._options, tsuid) for tsuid in tsuids}
        name_of = self.resolve(pair for uids in pairs.values() for pair in uids)
        first = {
            tsuid: next((pair for pair in uids if pair not in name_of), None) for tsuid, uids in pairs.items()
        }
        return {tsuid: pair for tsuid, pair in first.items() if pair is not None}


def why_nameless(pair: UidPair) -> str:
    """What is wrong with a UID that has no name."""
    return f"UID {pair[1].hex()} of kind {pair[0]} has no name"


class SeriesResolver:
    """Finds the series of rows; the name of each UID is read once.

    Args:
      reject_lost: whether a row with a UID without a name is a finding; else the UID is shown in hex.
      reject_ambiguous: see `Selection`.
    """

    def __init__(
        self,
        options: OpenTsdbOptions,
        reader: Reader,
        *,
        reject_lost: bool,
        reject_ambiguous: Callable[[Series], bool] | None = None,
    ) -> None:
        self._options, self._reader, self._reject_lost = options, reader, reject_lost
        self._name_of: dict[UidPair, str] = {}
        self._lost: set[UidPair] = set()
        self._tag_of: dict[bytes, tuple[str, str]] = {}
        self._series: dict[bytes, Series | None] = {}
        self._reject_ambiguous, self._is_ambiguous = reject_ambiguous, False
        self._uid_of: dict[tuple[str, str], bytes] = {}

    def selected(
        self, batch: Sequence[tuple[Row, bytes, ArchiveRead | None]]
    ) -> Iterator[Selected | Finding]:
        """Rows with their series.

        Args:
          batch: rows, each with its TSUID and `Selected.archived`.
        """
        self._find({tsuid for _, tsuid, _ in batch}.difference(self._series))
        new = tuple.__new__  # half the time of a named tuple's own
        for row, tsuid, archived in batch:
            series = self._series[tsuid]
            if series is not None:
                yield new(Selected, (row, series, archived))
                continue
            uids = tsuid_pairs(self._options, tsuid)
            nameless = next(pair for pair in uids if pair in self._lost)
            yield from row_findings(row, archived, why_nameless(nameless))

    def _find(self, tsuids: Collection[bytes]) -> None:
        """Finds the series of new TSUIDs; None for one that is rejected."""
        tags_at, key_width = self._options.uid_width_metric, self._options.uid_width_tagk
        width = key_width + self._options.uid_width_tagv
        tags_of = {
            tsuid: [tsuid[start : start + width] for start in range(tags_at, len(tsuid), width)]
            for tsuid in tsuids
        }
        new_tags = set[bytes]().union(*tags_of.values()).difference(self._tag_of)
        uids = {("metrics", metric) for metric in {tsuid[:tags_at] for tsuid in tsuids}}
        uids.update(("tagk", tag[:key_width]) for tag in new_tags)
        uids.update(("tagv", tag[key_width:]) for tag in new_tags)
        self._read(uids.difference(self._name_of))
        for tag in new_tags:
            self._tag_of[tag] = self._name_of["tagk", tag[:key_width]], self._name_of["tagv", tag[key_width:]]
        tag_of = self._tag_of.__getitem__
        for tsuid, tags in tags_of.items():
            metric = self._name_of["metrics", tsuid[:tags_at]]
            pairs = tuple(sorted(map(tag_of, tags)))  # shared by all series, which saves most of the time
            is_distinct = len(dict(pairs)) == len(pairs)
            self._is_ambiguous |= not is_distinct
            self._series[tsuid] = (
                Series(metric, pairs) if is_distinct else Series.of(metric, dict(map(tag_of, tags)))
            )
        if self._reject_ambiguous is not None and self._is_ambiguous:
            self._check_names(self._reject_ambiguous)
        if self._reject_lost and self._lost:
            for tsuid in tsuids:
                if not self._lost.isdisjoint(tsuid_pairs(self._options, tsuid)):
                    self._series[tsuid] = None

    def _check_names(self, reject: Callable[[Series], bool]) -> None:
        """Raises AmbiguousNameError if two TSUIDs have the names of a series to reject."""
        tsuid_of: dict[Series, bytes] = {}
        for tsuid, series in self._series.items():
            if (
                series is not None
                and (other := tsuid_of.setdefault(series, tsuid)) != tsuid
                and reject(series)
            ):
                raise AmbiguousNameError.of(series, (other, tsuid))

    def _read(self, uids: Collection[UidPair]) -> None:
        names = read_names(self._options, uids, self._reader)
        for pair in uids:
            name = names.get(pair)
            if name is None:
                self._lost.add(pair)
                self._name_of[pair] = f"unknown-uid-{pair[1].hex()}"
            else:
                self._name_of[pair] = name
                kind, uid = pair
                self._is_ambiguous |= self._uid_of.setdefault((kind, name), uid) != uid
