"""The graph that stores points (`PointsGraph`), as the options of a command describe it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

from timebeam.pipelines.options.parameters import UsageError
from timebeam.pipelines.options.place import Place, required_opentsdb
from timebeam.schema.core.contract import Store
from timebeam.schema.core.point_fragments import Packing
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.ingest.points_graph import PointsGraph
from timebeam.transforms.ingest.series_keys import UidOptions
from timebeam.transforms.opentsdb.assign_uids import UidPolicy
from timebeam.transforms.opentsdb.create_meta import TrackFn
from timebeam.transforms.rollup.changed_hours import ChangedHoursWriter

AnyGraph = TypeVar("AnyGraph", bound=PointsGraph)


@dataclasses.dataclass(frozen=True, slots=True)
class StoringOptions:
    """How points are stored: what all commands have that store some."""

    packing: str | None
    auto_create_metrics: bool
    auto_create_tagks: bool
    auto_create_tagvs: bool
    random_metrics: bool
    uid_cache_size: int
    uid_snapshot_size: int
    uid_negative_seconds: float
    bigtable_writer: str
    mark_changed: bool
    meta: str
    dry_run: bool


def check_writer(place: Place, writer: str, packing: Packing) -> None:
    """Raises UsageError if the writer cannot do what is asked of it."""
    if place.app_profile and writer == "beam" and packing is not Packing.APPEND:
        raise UsageError(
            "Beam's writer does not support app profiles: leave out --bigtable-writer beam, or --app-profile"
        )


def storing_graph(
    place: Place,
    options: StoringOptions,
    layout: Store,
    graph: Callable[..., AnyGraph],
    *,
    endless: bool,
    **parsing: Any,
) -> AnyGraph:
    """The graph of storing points in a layout.

    Args:
      layout: of the place.
      graph, parsing: its class, and what that has beside the attributes of `PointsGraph`.

    Raises:
      UsageError: options that cannot go together.
    """
    if layout.writing.read_only:
        raise UsageError(f"layout {layout.name}: {layout.writing.read_only}")
    default = Packing.POINTS if endless else layout.writing.packings[0]
    packing = Packing(options.packing) if options.packing else default
    if packing not in layout.writing.packings:
        raise UsageError(
            f"layout {layout.name} has no packing {packing.value}"
            f"{' (' + layout.writing.packing_limit + ')' if layout.writing.packing_limit else ''}: "
            f"choose {' or '.join(choice.value for choice in layout.writing.packings)}"
        )
    check_writer(place, options.bigtable_writer, packing)
    target = place.target
    is_marked = options.mark_changed or layout.writing.marked_since_s is not None
    policy = UidPolicy(
        options.auto_create_metrics,
        options.auto_create_tagks,
        options.auto_create_tagvs,
        options.random_metrics,
    )
    return graph(
        layout,
        packing,
        target,
        options.bigtable_writer,
        UidOptions(policy, options.uid_cache_size, options.uid_snapshot_size, options.uid_negative_seconds),
        options.dry_run,
        ChangedHoursWriter(layout) if is_marked else None,
        _track_of(target, options, layout),
        **parsing,
    )


def _track_of(target: Target, options: StoringOptions, layout: Store) -> TrackFn | None:
    """What writes metadata of new series, if any; raises UsageError if the layout has no metadata."""
    if options.meta == "off":
        return None
    opentsdb = required_opentsdb(layout, "metadata")
    return TrackFn(target, opentsdb, options.meta, options.uid_cache_size)
