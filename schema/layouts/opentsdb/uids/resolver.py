"""The series of data rows, by the names of their UIDs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from timebeam.schema.layouts.opentsdb import keys
from timebeam.schema.layouts.opentsdb.keys import OpenTsdbOptions, UidPair
from timebeam.schema.layouts.opentsdb.uids import uid_table
from timebeam.schema.layouts.reading import Finding, Reader, Selected, Severity
from timebeam.schema.layouts.tables import Row
from timebeam.schema.points import Series


class SeriesResolver:
    """Finds the series of rows; the name of each UID is read once.

    Args:
      table: name of the UID table.
      refuse_lost: whether a row with a UID without a name is a finding; else the UID is shown in hex.
    """

    def __init__(self, options: OpenTsdbOptions, table: str, reader: Reader, *, refuse_lost: bool) -> None:
        self._options = options
        self._table, self._reader, self._refuse_lost = table, reader, refuse_lost
        self._name_of: dict[UidPair, str] = {}
        self._lost: set[UidPair] = set()
        self._tag_of: dict[bytes, tuple[str, str]] = {}
        self._series: dict[bytes, Series | None] = {}

    def selected(self, batch: Sequence[tuple[Row, bytes]]) -> Iterator[Selected | Finding]:
        """Rows with their series.

        Args:
          batch: rows, each with its TSUID.
        """
        self._find({tsuid for _, tsuid in batch}.difference(self._series))
        new = tuple.__new__  # half the time of a named tuple's own
        for row, tsuid in batch:
            series = self._series[tsuid]
            if series is not None:
                yield new(Selected, (row, series))
                continue
            uids = keys.tsuid_pairs(self._options, tsuid)
            kind, uid = next(pair for pair in uids if pair in self._lost)
            yield Finding(Severity.DAMAGE, row.table, row.key, f"UID {uid.hex()} of kind {kind} has no name")

    def _find(self, tsuids: Collection[bytes]) -> None:
        """Finds the series of new TSUIDs; None for one that is refused."""
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
            self._series[tsuid] = (
                Series(metric, pairs) if is_distinct else Series.of(metric, dict(map(tag_of, tags)))
            )
        if self._refuse_lost and self._lost:
            for tsuid in tsuids:
                if not self._lost.isdisjoint(keys.tsuid_pairs(self._options, tsuid)):
                    self._series[tsuid] = None

    def _read(self, uids: Collection[UidPair]) -> None:
        """Reads the names of UIDs."""
        columns = {(uid_table.NAME_FAMILY, kind.encode()): kind for kind in uid_table.KINDS}
        names = {
            (kind, key): uid_table.name_text(cell.value)
            for key, row in self._reader.rows(self._table, sorted({uid for _, uid in uids})).items()
            for cell in row.cells
            if (kind := columns.get(cell[:2])) is not None
        }
        for pair in uids:
            name = names.get(pair)
            if name is None:
                self._lost.add(pair)
                self._name_of[pair] = f"unknown-uid-{pair[1].hex()}"
            else:
                self._name_of[pair] = self._options.names.shown(name)
