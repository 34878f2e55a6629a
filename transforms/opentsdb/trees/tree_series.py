"""The series of OpenTSDB's tables as tree rules see them: by key range, by TSUID, or by name."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

from timebeam.schema.bits.reasons import Reason, RejectedError
from timebeam.schema.core.point_fragments import Name
from timebeam.schema.core.points import Series
from timebeam.schema.core.rejections import Rejected, Stage
from timebeam.schema.core.rows import KeyRange
from timebeam.schema.core.selection import Reader
from timebeam.schema.stores.opentsdb.keys import UidPair, is_of_series, tsuid_of_key, tsuid_pairs
from timebeam.schema.stores.opentsdb.trees.place_series import TreeSeries, Uid, read_uid
from timebeam.schema.stores.opentsdb.uids.uid_table import UidCache, look_up_shown
from timebeam.transforms.bigtable.read_ranges import scan_keys
from timebeam.transforms.bigtable.target import Target

if TYPE_CHECKING:
    from timebeam.schema.stores.opentsdb.layout import OpenTsdb

_PRINTED = re.compile(r"([^{}\s]+)\{([^{}]*)\}")


def read_tsuids(target: Target, layout: OpenTsdb, table: str, within: KeyRange) -> Iterator[bytes | Rejected]:
    """The TSUIDs of the rows of a key range, ascending by key, and rejections of rows without one.

    A series of the data table comes once for each sequence of its rows. Rows of global annotations are
    skipped.

    Args:
      table: the meta table, or the data table.
    """
    if table != layout.data_table:
        yield from scan_keys(target, table, *within)
        return
    last = b""
    for key in scan_keys(target, table, *within):
        if not is_of_series(layout.options, key):
            continue
        try:
            tsuid, _ = tsuid_of_key(layout.options, key)
        except ValueError as error:
            reason = Reason.SERIES_NOT_STORABLE
            yield Rejected(key, reason, str(error), Stage.READ, f"row of table {table}")
            continue
        if tsuid != last:
            yield tsuid
        last = tsuid


class DescribedUids(UidCache[Uid | RejectedError]):
    """Names and custom fields of UIDs, or why they have none, and the series of TSUIDs. Not for threads."""

    def __init__(self, layout: OpenTsdb, reader: Reader) -> None:
        super().__init__(self._described)
        self._layout, self._reader = layout, reader

    def series(self, tsuids: Sequence[bytes]) -> list[TreeSeries | RejectedError]:
        """The series of each TSUID, or why it has none; reads all UIDs together."""
        pairs = [self._pairs(tsuid) for tsuid in tsuids]
        uids = self.resolve(
            {
                pair
                for series_pairs in pairs
                if not isinstance(series_pairs, RejectedError)
                for pair in series_pairs
            }
        )
        return [
            series_pairs
            if isinstance(series_pairs, RejectedError)
            else _series(tsuid, [uids[pair] for pair in series_pairs])
            for tsuid, series_pairs in zip(tsuids, pairs, strict=True)
        ]

    def _described(self, uids: Collection[UidPair]) -> dict[UidPair, Uid | RejectedError]:
        options = self._layout.options
        rows = self._reader.rows(options.uid_table, sorted({uid for _, uid in uids}))
        return {pair: read_uid(options.names, rows.get(pair[1]), *pair) for pair in uids}

    def _pairs(self, tsuid: bytes) -> Sequence[UidPair] | RejectedError:
        try:
            return tsuid_pairs(self._layout.options, tsuid)
        except ValueError as error:
            why = f"{error}: are the UID widths those of the TSDs?"
            return RejectedError(Reason.SERIES_NOT_STORABLE, why)


def _series(tsuid: bytes, uids: Sequence[Uid | RejectedError]) -> TreeSeries | RejectedError:
    """The series with these UIDs, in the order of the TSUID."""
    named: list[Uid] = []
    for uid in uids:
        if isinstance(uid, RejectedError):
            return uid
        named.append(uid)
    return TreeSeries(tsuid, named[0], list(zip(named[1::2], named[2::2], strict=True)))


def find_series(
    layout: OpenTsdb, words: Sequence[str], reader: Reader | None
) -> tuple[TreeSeries, list[Name]]:
    """(the series, its names without a UID: they have no custom fields and are not in the TSUID).

    Args:
      words: a TSUID, or `metric tag=value ...`, or `metric{tag=value,...}` as queries print it.
      reader: None for a series without UIDs and custom fields.

    Raises:
      RejectedError: the words are not a series, a name cannot be stored, or a UID of the TSUID has no name.
    """
    if len(words) == 1 and re.fullmatch(r"(?:[0-9a-fA-F]{2})+", words[0]):
        if reader is None:
            raise RejectedError(Reason.BAD_SYNTAX, "a TSUID needs the UID table: give metric tag=value ...")
        (tree_series,) = DescribedUids(layout, reader).series([bytes.fromhex(words[0])])
        if isinstance(tree_series, RejectedError):
            raise tree_series
        return tree_series, []
    series = _parsed(" ".join(words))
    rejected = layout.reject(series)
    if rejected is not None:
        raise rejected
    return _with_uids(layout, series, reader)


def _parsed(text: str) -> Series:
    """Parses a series; raises RejectedError if a tag is malformed or duplicate."""
    printed = _PRINTED.fullmatch(text)
    metric, *pairs = [printed[1], *printed[2].split(",")] if printed else text.split()
    tags: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or key in tags:
            why = "is a duplicate tag" if equals else "is not a tag"
            raise RejectedError(
                Reason.BAD_SYNTAX, f"{pair!r} {why}; give metric tag=value tag=value ..., or a TSUID"
            )
        tags[key] = value
    return Series.of(metric, tags)


def _with_uids(layout: OpenTsdb, series: Series, reader: Reader | None) -> tuple[TreeSeries, list[Name]]:
    """The series with its custom fields, and its TSUID if all names have UIDs."""
    tags = [(Name("tagk", key), Name("tagv", value)) for key, value in series.tags]
    names = [Name("metrics", series.metric), *itertools.chain.from_iterable(tags)]
    uids = look_up_shown(layout.options, names, reader) if reader else {}
    missing = [name for name in names if name not in uids]
    described: dict[Name, Uid] = {name: Uid(name.text) for name in names}
    if reader:
        uid_by_pair = DescribedUids(layout, reader).resolve({(name.kind, uid) for name, uid in uids.items()})
        for name, uid in uids.items():
            described_uid = uid_by_pair[name.kind, uid]
            if isinstance(described_uid, RejectedError):
                raise described_uid
            described[name] = described_uid
    tsuid = b""
    if not missing:
        tags.sort(key=lambda pair: uids[pair[0]] + uids[pair[1]])
        tsuid = uids[names[0]] + b"".join(uids[key] + uids[value] for key, value in tags)
    pairs = [(described[key], described[value]) for key, value in tags]
    return TreeSeries(tsuid, described[names[0]], pairs), missing
