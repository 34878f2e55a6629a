"""Annotations into Bigtable: each edit gets its place, and is carried out there (docs/annotations.md)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import apache_beam as beam
from apache_beam.pvalue import PCollection
from apache_beam.transforms.window import GlobalWindows
from apache_beam.utils.windowed_value import WindowedValue

from schema.annotations.edits import AnnotationEdit
from schema.layouts import Layout, SeriesKey
from schema.layouts.opentsdb import annotation_cells as cells
from schema.layouts.opentsdb import select
from schema.layouts.opentsdb.layout import OpenTsdb
from schema.lru import LruCache
from schema.points import Reason, RefusedError, Rejected, Stage
from transforms.annotation_table import Addressed, store
from transforms.bigtable.reader import TableReader
from transforms.bigtable.target import Target
from transforms.rejected import REJECTED, RejectedOutput, refuse, refusing
from transforms.series_keys import SeriesKeys, UidOptions

_KNOWN_TSUIDS = 100_000
_HELD_EDITS = 2_000


class StoreAnnotations(beam.PTransform):  # type: ignore[type-arg]
    """Lists of `AnnotationEdit` in; the PCollection of `Rejected` ones out.

    Args:
      endless: whether the input is a stream, of which a bundle is all that is known; else all edits of one
        annotation are carried out together.
      dry_run: resolve names, and write nothing.
    """

    def __init__(
        self, target: Target, layout: Layout, uids: UidOptions, *, endless: bool, dry_run: bool
    ) -> None:
        super().__init__()
        self._target, self._layout, self._uids = target, layout, uids
        self._endless, self._dry_run = endless, dry_run

    def expand(self, edits: PCollection[list[AnnotationEdit]]) -> PCollection[Rejected]:
        """See the class."""
        if not isinstance(self._layout, OpenTsdb):
            return edits | "Refuse" >> beam.ParDo(_NoPlaceFn(self._layout.name))
        address = _AddressFn(self._target, self._layout, self._uids, dry_run=self._dry_run)
        addressed = edits | "Address" >> refusing(address, tuple[tuple[bytes, bytes], list[Any]])
        together = addressed.main
        if not self._endless:
            grouped = together | "GroupPerAnnotation" >> beam.GroupByKey()
            together = grouped | "Join" >> beam.ParDo(_JoinFn()).with_output_types(
                tuple[tuple[bytes, bytes], list[Any]]
            )
        store = _StoreFn(self._target, self._layout, dry_run=self._dry_run)
        stored = together | "Store" >> beam.ParDo(store)
        return (addressed[REJECTED], stored) | "AllRefused" >> beam.Flatten()


class _NoPlaceFn(beam.DoFn):
    """Lists of edits in; their refusals out, for layouts that have no place for annotations."""

    def __init__(self, layout: str) -> None:
        self._why = RefusedError(
            Reason.VALUE_NOT_STORABLE, f"layout {layout} has no place for annotations: opentsdb has"
        )

    def process(self, edits: Sequence[AnnotationEdit]) -> Iterator[Rejected]:
        for edit in edits:
            yield edit.refuse(self._why, Stage.ASSIGN)


class _AddressFn(beam.DoFn):
    """Lists of edits in; ((row key, qualifier), list of `Addressed`) out, refused ones to `REJECTED`."""

    def __init__(self, target: Target, layout: OpenTsdb, uids: UidOptions, *, dry_run: bool) -> None:
        self._target, self._layout = target, layout
        self._keys = SeriesKeys(target, layout, uids, dry_run=dry_run)
        self._known: LruCache[bytes, bool] = LruCache(_KNOWN_TSUIDS)

    def setup(self) -> None:
        """Opens the UID table and the cache of the process."""
        self._keys.open()

    def process(
        self, edits: Sequence[AnnotationEdit]
    ) -> Iterator[tuple[tuple[bytes, bytes], list[Addressed]] | RejectedOutput]:
        """See the class."""
        options = self._layout.options
        groups: dict[cells.Place, list[Addressed]] = {}
        for edit, tsuid in zip(edits, self._tsuids(edits), strict=True):
            if isinstance(tsuid, RefusedError):
                yield refuse(edit.refuse(tsuid, Stage.ASSIGN))
            else:
                at = cells.place(options, tsuid, edit.start)
                groups.setdefault(at, []).append(Addressed(tsuid.hex().upper(), edit))
        for at, addressed in groups.items():
            yield tuple(at), addressed  # type: ignore[misc]

    def _tsuids(self, edits: Sequence[AnnotationEdit]) -> list[bytes | RefusedError]:
        """The TSUID of each edit, empty for a global annotation, or why it has none."""
        named = [edit.series for edit in edits if edit.series is not None]
        keys = iter(self._keys.of(named)) if named else iter(())
        found = [self._tsuid(edit, next(keys) if edit.series is not None else None) for edit in edits]
        given = {
            tsuid for edit, tsuid in zip(edits, found, strict=True) if edit.tsuid and isinstance(tsuid, bytes)
        }
        unknown = self._unknown(given)
        return [unknown.get(tsuid, tsuid) if isinstance(tsuid, bytes) else tsuid for tsuid in found]

    def _tsuid(self, edit: AnnotationEdit, key: SeriesKey | RefusedError | None) -> bytes | RefusedError:
        if isinstance(key, RefusedError):
            return key
        if key is not None:
            return key.head[self._layout.options.salt_width :] + key.tail
        try:
            return cells.check_tsuid(self._layout.options, edit.tsuid) if edit.tsuid else b""
        except RefusedError as error:
            return error

    def _unknown(self, tsuids: Iterable[bytes]) -> dict[bytes, RefusedError]:
        """Those of the TSUIDs that hold a UID without a name: no query can ever find their annotations."""
        asked = {
            tsuid: select.row_names(self._layout.options, cells.place(self._layout.options, tsuid, 1).key)
            for tsuid in tsuids
            if self._known.get(tsuid) is None
        }
        if not asked:
            return {}
        pairs = {pair for names in asked.values() for pair in names}
        named = select.named_uids(self._layout.uid_table, pairs, TableReader(self._target))
        unknown = {}
        for tsuid, names in asked.items():
            lost = next((pair for pair in names if pair not in named), None)
            if lost is None:
                self._known[tsuid] = True
            else:
                why = (
                    f"tsuid {tsuid.hex().upper()}: UID {lost[1].hex().upper()} of kind {lost[0]} has no name"
                )
                unknown[tsuid] = RefusedError(Reason.UNKNOWN_NAME, why)
        return unknown


class _JoinFn(beam.DoFn):
    """(key, lists of `Addressed`) in; (key, one list) out."""

    def process(
        self, group: tuple[tuple[bytes, bytes], Iterable[list[Addressed]]]
    ) -> Iterator[tuple[tuple[bytes, bytes], list[Addressed]]]:
        key, lists = group
        yield key, [one for some in lists for one in some]


class _StoreFn(beam.DoFn):
    """((row key, qualifier), list of `Addressed`) in; `Rejected` out. A bundle ends when all is stored."""

    def __init__(self, target: Target, layout: OpenTsdb, *, dry_run: bool) -> None:
        self._target, self._layout, self._dry_run = target, layout, dry_run
        self._held: dict[cells.Place, list[Addressed]] = {}
        self._size = 0

    def start_bundle(self) -> None:
        self._held, self._size = {}, 0

    def process(self, group: tuple[tuple[bytes, bytes], list[Addressed]]) -> Iterator[Rejected]:
        at, addressed = group
        self._held.setdefault(cells.Place(*at), []).extend(addressed)
        self._size += len(addressed)
        if self._size >= _HELD_EDITS:
            yield from self._flush()

    def finish_bundle(self) -> Iterator[WindowedValue]:
        for rejected in self._flush():
            yield GlobalWindows.windowed_value(rejected)

    def _flush(self) -> list[Rejected]:
        held, self._held, self._size = self._held, {}, 0
        return store(self._target, self._layout, held, dry_run=self._dry_run) if held else []
