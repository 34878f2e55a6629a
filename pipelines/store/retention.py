"""What `timebeam delete` deletes: its options, and what rules of retention say of old days."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from timebeam.pipelines.options.parameters import UsageError
from timebeam.pipelines.options.place import Place
from timebeam.schema.bits.times import DAY_MS, floor_to
from timebeam.schema.core.contract import ReadableStore
from timebeam.schema.core.selection import Reader
from timebeam.schema.query.question import NONE, Question
from timebeam.schema.series.retention_rules import parse_rules, rule_of
from timebeam.schema.stores import find_opentsdb
from timebeam.transforms.care.delete_points import DeleteTask
from timebeam.transforms.opentsdb.delete_rows import RolledTable, rolled_tables


@dataclasses.dataclass(frozen=True, slots=True)
class DeleteOptions:
    """Which points are deleted, and what else; `origins` has where each option comes from."""

    metric: str | None
    start: str | None
    end: str
    tag: Sequence[str]
    explicit_tags: bool
    tsuid: Sequence[str]
    full_scan: bool
    keep_days: Sequence[str]
    rollup_config: str | None
    unattended: bool
    token: str | None
    log: str
    series: bool
    annotations: bool
    keep_rollups: bool
    dry_run: bool
    origins: Mapping[str, str]


def old_points(
    place: Place, options: DeleteOptions, layout: ReadableStore, reader: Reader, now_ms: int
) -> list[DeleteTask]:
    """For each metric that a rule of `--keep-days` matches, the points and rollups of too old UTC days.

    Raises:
      UsageError: other options select points too, or the layout does not list its metrics or rollups.
    """
    others = options.metric, options.tag, options.explicit_tags, options.tsuid, options.start
    if any(others) or options.origins["end"] == "--end":
        raise UsageError("--keep-days selects by itself: leave out METRIC, --start, --end, --tag and --tsuid")
    with_uids, indexed = find_opentsdb(layout), layout.index
    if with_uids is not None:
        metrics = list(with_uids.metric_uids(reader))
    elif indexed is not None:
        metrics = sorted({series.metric for series, _ in indexed.series(None, reader)})
    else:
        raise UsageError(f"layout {layout.name}: set an age with `timebeam tables retention`")
    try:
        rules = parse_rules(options.keep_days)
    except ValueError as error:
        raise UsageError(f"--keep-days: {error}") from error
    if options.keep_rollups and any(rule.separate for rule in rules):
        raise UsageError("the rules say how long rollups are kept: leave out --keep-rollups")
    expiring = any(rule.separate and rule.rollup_days is not None for rule in rules)
    rolled = _rolled_tables(place, options) if expiring and not options.annotations else ()
    tasks = []
    for metric in metrics:
        rule = rule_of(rules, metric)
        if rule is None:
            continue
        if (old := _older(metric, rule.days, now_ms)) is not None:
            tasks.append(DeleteTask(old, str(rule), marks=not rule.separate))
        if rule.separate and (old := _older(metric, rule.rollup_days, now_ms)) is not None:
            tasks += [DeleteTask(old, str(rule), table, marks=False) for table in rolled]
    return tasks


def _older(metric: str, days: int | None, now_ms: int) -> Question | None:
    """The UTC days of a metric that are older than so many; None if there are none."""
    end_ms = -1 if days is None else floor_to(now_ms, DAY_MS) - days * DAY_MS - 1
    return Question(metric, {}, (), NONE, None, 0, end_ms) if end_ms > 0 else None


def _rolled_tables(place: Place, options: DeleteOptions) -> list[RolledTable]:
    """The tables of rollups and pre-aggregates.

    Raises:
      UsageError: no option names their configuration, or the layout has none.
    """
    if not options.rollup_config:
        raise UsageError("--keep-days: the days of rollups need --rollup-config, which names their tables")
    return rolled_tables(*place.rollups(options.rollup_config))
