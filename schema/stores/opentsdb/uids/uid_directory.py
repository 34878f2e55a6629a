"""What UIDs mean: their names and series, from the rows of the UID table, and a bounded cache of that."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Generic, TypeVar

from timebeam.schema.bits.lru_cache import LruCache
from timebeam.schema.core.point_fragments import Name
from timebeam.schema.core.points import Series
from timebeam.schema.core.rows import Row
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
from timebeam.schema.stores.opentsdb.uids import uid_table

_CACHED = 1_000_000

Meaning = TypeVar("Meaning")


def look_up_shown(options: OpenTsdbOptions, names: Iterable[Name], reader: Reader) -> dict[Name, bytes]:
    """As `uid_table.look_up`, for names as users write them."""
    stored: dict[Name, Name] = {}
    for name in names:
        with contextlib.suppress(UnicodeEncodeError):  # half a surrogate pair, which no name has
            stored[name] = name._replace(text=options.names.stored(name.text))
    uid_of = uid_table.look_up(options.uid_table, stored.values(), reader)
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
    first = uid_table.name_bytes(form.stored(start) if form is Names.ESCAPE else start)
    column = ColumnRange(uid_table.ID_FAMILY, kind.encode(), kind.encode() + b"\x00")
    for row in reader.scan(Scan(options.uid_table, [prefix_range(first)], columns=column)):
        if row.key != uid_table.COUNTER_ROW:
            yield form.shown(uid_table.name_text(row.key)), row.cells[0].value


def read_names(options: OpenTsdbOptions, uids: Collection[UidPair], reader: Reader) -> dict[UidPair, str]:
    """The names, as they are shown, of the UIDs that have one; reads all rows together."""
    rows = reader.rows(options.uid_table, sorted({uid for _, uid in uids}))
    column_of = {kind: (uid_table.NAME_FAMILY, kind.encode()) for kind in uid_table.KINDS}
    shown, text = options.names.shown, uid_table.name_text
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
