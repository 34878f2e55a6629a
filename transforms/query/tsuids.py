"""TSUIDs of series, and series of TSUIDs, in a layout with UID tables."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from timebeam.schema.layouts import Name, Reader, UidTables
from timebeam.schema.layouts.opentsdb import select
from timebeam.schema.meta import tsuid as tsuids
from timebeam.schema.meta.search import CachedUidNames
from timebeam.schema.points import Series


def tsuids_of(layout: UidTables, series: Collection[Series], reader: Reader) -> dict[Series, bytes]:
    """The TSUIDs of series; without series that have a name without a UID."""
    names = {series_: layout.names(series_) for series_ in series}
    uids = select.look_up(layout.uid_table, {name for group in names.values() for name in group}, reader)
    return {
        series_: uids[group[0]] + b"".join(sorted(uids[key] + uids[value] for key, value in _pairs(group)))
        for series_, group in names.items()
        if all(name in uids for name in group)
    }


def series_of_tsuids(layout: UidTables, texts: Iterable[str], reader: Reader) -> dict[bytes, Series]:
    """The series of TSUIDs in hex.

    Raises:
      ValueError: one is no TSUID, or has a UID without a name.
    """
    raw = [bytes.fromhex(text) for text in texts]
    pairs_of = {tsuid: tsuids.pairs(layout.options, tsuid) for tsuid in raw}
    names = CachedUidNames(layout.uid_table, reader).resolve(
        pair for pairs in pairs_of.values() for pair in pairs
    )
    series: dict[bytes, Series] = {}
    for tsuid, pairs in pairs_of.items():
        for kind, uid in pairs:
            if (kind, uid) not in names:
                raise ValueError(f"No such unique ID for '{kind}': {uid.hex().upper()}")
        texts_of = [names[pair] for pair in pairs]
        series[tsuid] = Series.of(texts_of[0], dict(zip(texts_of[1::2], texts_of[2::2], strict=True)))
    return series


def _pairs(names: Sequence[Name]) -> Iterable[tuple[Name, Name]]:
    """The tag keys and values of the names of a series."""
    return zip(names[1::2], names[2::2], strict=True)
