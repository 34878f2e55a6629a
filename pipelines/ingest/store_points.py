"""The graph that stores points (`PointsGraph`), as the options of a command describe it."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from timebeam.pipelines.options.parameters import UsageError
from timebeam.pipelines.options.values import check_writer, required_opentsdb, target_of
from timebeam.schema.core.contract import Store
from timebeam.schema.core.point_fragments import Packing
from timebeam.transforms.ingest.points_graph import PointsGraph
from timebeam.transforms.ingest.series_keys import UidOptions
from timebeam.transforms.opentsdb.assign_uids import UidPolicy
from timebeam.transforms.opentsdb.create_meta import TrackFn
from timebeam.transforms.rollup.changed_hours import ChangedHoursWriter

if TYPE_CHECKING:
    pass


AnyGraph = TypeVar("AnyGraph", bound=PointsGraph)


def storing_graph(
    options: argparse.Namespace,
    layout: Store,
    graph: Callable[..., AnyGraph],
    *,
    endless: bool,
    **parsing: Any,
) -> AnyGraph:
    """The graph of storing points in a layout.

    Args:
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
    check_writer(options, packing)
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
        target_of(options),
        options.bigtable_writer,
        UidOptions(policy, options.uid_cache_size, options.uid_snapshot_size, options.uid_negative_seconds),
        options.dry_run,
        ChangedHoursWriter(layout) if is_marked else None,
        _track_of(options, layout),
        **parsing,
    )


def _track_of(options: argparse.Namespace, layout: Store) -> TrackFn | None:
    """What writes metadata of new series, if any; raises UsageError if the layout has no metadata."""
    if options.meta == "off":
        return None
    opentsdb = required_opentsdb(layout, "metadata")
    return TrackFn(target_of(options), opentsdb, options.meta, options.uid_cache_size)
