"""`timebeam plan`: what a load of points needs of Bigtable and Dataflow, for each packing of a layout."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

from timebeam.pipelines.options.catalogue import layout_parameters
from timebeam.pipelines.options.parameters import DECLARED, UsageError
from timebeam.pipelines.options.place import Place
from timebeam.pipelines.sizing.estimate import HEADROOM, NODES, Sizes, SizingPlan, plan
from timebeam.pipelines.sizing.measure import SizingLoad, Values
from timebeam.schema.bits.reasons import RejectedError
from timebeam.schema.core.contract import Store

_MONTH_HOURS = 730
_RETENTION_CLASSES = ("retention", "retention_class")
"""Options of kairosdb: nothing is larger or smaller by them, and `retention` is a time here."""


@dataclasses.dataclass(frozen=True, slots=True)
class PlanOptions:
    """The load, see `SizingLoad`, the prices, and how the plan is shown."""

    series: int
    interval: int
    retention: int
    metrics: int
    tags: int
    tag_values: int | None
    name_length: int
    values: str
    points_per_message: int
    flush_seconds: float
    storage: str
    node_price: float | None
    gb_price: float | None
    core_price: float | None
    shuffle_price: float | None
    summary: str


def load_of(options: PlanOptions) -> SizingLoad:
    """The load that the options describe.

    Raises:
      UsageError: they make no sense together.
    """
    metrics = min(options.metrics, options.series)
    per_metric = math.ceil(options.series / metrics)
    try:
        return SizingLoad(
            options.series,
            options.interval,
            options.retention / 1000,
            metrics,
            options.tags,
            options.tag_values or per_metric + options.tags - 1,
            options.name_length,
            Values(options.values),
            options.points_per_message,
            options.flush_seconds,
        )
    except ValueError as error:
        raise UsageError(f"{error}: give --name-length, or fewer names") from error


def _layout_of(place: Place) -> Store:
    """The layout of a place; raises UsageError if it cannot be planned for."""
    if place.layout == DECLARED:
        raise UsageError(
            f"layout {DECLARED}: `timebeam layout check FILE` estimates the sizes of declared tables, "
            "from the `estimate` in the file"
        )
    defaults = {each.name: each.default for each in layout_parameters() if each.name in _RETENTION_CLASSES}
    layout = place.with_settings(**defaults).store
    if layout.writing.read_only:
        raise UsageError(f"layout {layout.name}: {layout.writing.read_only}")
    return layout


def run(place: Place, options: PlanOptions) -> int:
    """Measures a sample and prints what the load needs."""
    layout, load = _layout_of(place), load_of(options)
    try:
        sizing = plan(layout, load, NODES[options.storage])
    except RejectedError as error:
        raise UsageError(f"layout {layout.name} cannot store such series: {error.message}") from error
    if options.summary == "json":
        print(json.dumps(_json(layout.name, sizing, options)))
    else:
        print(_text(layout.name, sizing, options))
    return 0


def costs(sizes: Sizes, options: PlanOptions) -> dict[str, float]:
    """Prices of a month of workers, shuffle, nodes and storage; only those that options give."""
    amounts = {
        "workers": (sizes.cores * _MONTH_HOURS, options.core_price),
        "shuffle": (sizes.shuffled_bytes / 1e9 * _MONTH_HOURS * 3600, options.shuffle_price),
        "nodes": (sizes.nodes * _MONTH_HOURS, options.node_price),
        "storage": (sizes.stored_bytes / 1e9, options.gb_price),
    }
    return {name: amount * price for name, (amount, price) in amounts.items() if price is not None}


def _json(layout: str, sizing: SizingPlan, options: PlanOptions) -> dict[str, Any]:
    """Everything, by name."""
    document = dataclasses.asdict(sizing)
    for sizes, sizes_document in zip(sizing.sizes, document["sizes"], strict=True):
        by_what = costs(sizes, options)
        sizes_document["cost_per_month"] = sum(by_what.values()) if by_what else None
        sizes_document["costs_per_month"] = by_what
        sizes_document["case"] = {"packing": sizes.case.packing.value, "input": _input(sizes)}
        sizes_document["measured"] |= {
            "row_bytes": sizes.measured.row_bytes,
            "row_cells": sizes.measured.row_cells,
        }
    return {"layout": layout, **document}


def _input(sizes: Sizes) -> str:
    return "stream" if sizes.case.stream else "files"


def _text(layout: str, sizing: SizingPlan, options: PlanOptions) -> str:
    """A table for people, then the warnings."""
    load, priced = sizing.load, bool(costs(sizing.sizes[0], options))
    points = load.points_per_second
    lines = [
        f"{load.series:,} series, a point each {_time(load.interval_ms)}: {points:,.1f} points/s, "
        f"{points * 86_400:,.0f} a day, kept {_time(int(load.retention_s * 1000))}; layout {layout}",
        "",
    ]
    head = ["packing", "input", "rows/s", "cells/s", "bytes/point", "GB a month", "GB stored"]
    table = [[*head, "shuffle MB/s", "cores", "nodes", "because of"]]
    if priced:
        table[0] += ["cost a month", "of which"]
    for sizes in sizing.sizes:
        measured = sizes.measured
        row = [
            sizes.case.packing.value,
            _input(sizes),
            _rate(sizes.row_writes),
            _rate(sizes.cell_writes),
            f"{measured.bytes_per_point:.1f}",
            f"{sizes.month_bytes / 1e9:,.1f}",
            f"{sizes.stored_bytes / 1e9:,.1f}",
            f"{sizes.shuffled_bytes / 1e6:,.2f}",
            f"{sizes.cores:,}",
            f"{sizes.nodes:,}",
            sizes.nodes_for,
        ]
        if priced:
            by_what = costs(sizes, options)
            total = sum(by_what.values())
            shares = [f"{name} {amount / max(total, 1e-9):.0%}" for name, amount in by_what.items()]
            row += [f"{total:,.0f}", ", ".join(shares)]
        table.append(row)
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    left_aligned = {0, 1, 10, 12}
    for row in table:
        cells = [
            text.ljust(width) if column in left_aligned else text.rjust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    measured = sizing.sizes[0].measured
    lines += [
        "",
        f"a row: {_time(measured.row_span_ms)} of a series, {measured.points_per_row:,} points; its key "
        f"{measured.key_bytes:,} bytes",
        f"a node ({sizing.node.name}): {sizing.node.writes:,} row writes/s of 1 KB, "
        f"{sizing.node.storage / 1e12:g} TB; used to {HEADROOM:.0%}; bytes are before compression",
    ]
    if sizing.uids:
        uids = (f"{kind} {load.names[kind]:,} of {last:,}" for kind, last in sizing.uids.items())
        lines.append(f"UIDs: {', '.join(uids)}")
    warned = [f"warning: {text}" for text in sizing.warnings]
    by_text: dict[str, list[str]] = {}
    for sizes in sizing.sizes:
        for text in sizes.warnings:
            by_text.setdefault(text, []).append(f"{sizes.case.packing.value}, {_input(sizes)}")
    warned += [f"warning: {'; '.join(which)}: {text}" for text, which in by_text.items()]
    return "\n".join([*lines, *([""] if warned else []), *warned])


def _rate(number: float) -> str:
    return f"{number:,.0f}" if number >= 10 else f"{number:.2g}"


def _time(ms: int) -> str:
    """A time in its largest whole unit."""
    for size, unit in ((86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1000, "s")):
        if ms % size == 0:
            return f"{ms // size:,}{unit}"
    return f"{ms:,}ms" if ms < 86_400_000 else f"{ms / 86_400_000:,.1f}d"
