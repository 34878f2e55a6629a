"""TSUIDs as the series that rules see: names and custom fields out of the UID table, each read once."""

from __future__ import annotations

from collections.abc import Sequence

from schema.layouts import Reader
from schema.layouts.opentsdb.layout import OpenTsdb
from schema.lru import LruCache
from schema.meta import tsuid as tsuids
from schema.meta.tsuid import Pair
from schema.points import Reason, RefusedError
from schema.trees.evaluate import TreeSeries, Uid
from schema.trees.uids import read_uid

_KNOWN = 1_000_000


class UidNames:
    """The UIDs of one layout, remembered; bounded. Not for threads."""

    def __init__(self, layout: OpenTsdb, reader: Reader) -> None:
        self._layout, self._reader = layout, reader
        self._known: LruCache[Pair, Uid | RefusedError] = LruCache(_KNOWN)

    def series(self, wanted: Sequence[bytes]) -> list[TreeSeries | RefusedError]:
        """The series of each TSUID, or why it has none; the UIDs of all are read together."""
        pairs = [self._pairs(tsuid) for tsuid in wanted]
        uids = self.of({pair for of in pairs if not isinstance(of, RefusedError) for pair in of})
        return [
            of if isinstance(of, RefusedError) else _series(tsuid, [uids[pair] for pair in of])
            for tsuid, of in zip(wanted, pairs, strict=True)
        ]

    def of(self, wanted: set[Pair]) -> dict[Pair, Uid | RefusedError]:
        """Each UID, from memory or the table."""
        found = {pair: known for pair in wanted if (known := self._known.get(pair)) is not None}
        missing = sorted(wanted.difference(found))
        keys = sorted({uid for _, uid in missing})
        rows = self._reader.rows(self._layout.uid_table, keys) if keys else {}
        for kind, uid in missing:
            self._known[kind, uid] = found[kind, uid] = read_uid(rows.get(uid), kind, uid)
        return found

    def _pairs(self, tsuid: bytes) -> Sequence[Pair] | RefusedError:
        try:
            return tsuids.pairs(self._layout.options, tsuid)
        except ValueError as error:
            why = f"{error}: are the UID widths those of the TSDs?"
            return RefusedError(Reason.SERIES_NOT_STORABLE, why)


def _series(tsuid: bytes, uids: Sequence[Uid | RefusedError]) -> TreeSeries | RefusedError:
    """The series of its UIDs, in the order of the TSUID."""
    found: list[Uid] = []
    for uid in uids:
        if isinstance(uid, RefusedError):
            return uid
        found.append(uid)
    return TreeSeries(tsuid, found[0], list(zip(found[1::2], found[2::2], strict=True)))
