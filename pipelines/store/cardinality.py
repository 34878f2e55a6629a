"""`timebeam cardinality`: what has the most series, and the most new ones."""

from __future__ import annotations

import collections
import dataclasses
import io
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from apache_beam.io.filesystems import FileSystems

from timebeam.pipelines.options.parameters import UsageError, usage_errors
from timebeam.pipelines.options.parsing import note
from timebeam.pipelines.options.place import Place
from timebeam.pipelines.output.chart import need_plots, plain
from timebeam.pipelines.output.printable import printable
from timebeam.pipelines.query.database import Database
from timebeam.pipelines.query.listings import find_series
from timebeam.schema.bits.reasons import Reason
from timebeam.schema.bits.times import parse_time
from timebeam.schema.core.rejections import Rejected
from timebeam.schema.series.series_limits import Cardinality, Rank
from timebeam.schema.series.series_patterns import Listed, SeriesQuery
from timebeam.transforms.dead_letters.letter import from_json
from timebeam.transforms.input.files import match

_HEADINGS = {"metrics": "metric", "tag_keys": "tag key", "tag_values": "tag value", "producers": "producer"}

Ranks = Mapping[str, Sequence[Rank]]
"""The ranks of each of `_HEADINGS`."""


@dataclasses.dataclass(frozen=True, slots=True)
class CardinalityOptions:
    """What is counted, and how it is shown."""

    metric: str
    top: int
    by: str
    since: str
    source: str
    rejected: Sequence[str]
    output: str


def run(place: Place, options: CardinalityOptions, now_ms: int) -> int:
    """Counts the series and prints what has the most; exit code 1 if some could not be read."""
    picture = None if options.output in ("table", "json") else Path(options.output)
    if picture is not None:
        if picture.suffix.lower() != ".png" or not picture.parent.is_dir():
            raise UsageError(
                f"--output {options.output}: give table, json, or FILE.png in an existing folder"
            )
        need_plots("matplotlib")
    try:
        since_ms = parse_time(options.since, now_ms)
    except ValueError as error:
        raise UsageError(f"--since: {error}") from error
    database = Database.of(place)
    database.check_tables()
    counts, bad = Cardinality(since_ms), 0
    with usage_errors():
        results, where = find_series(database, SeriesQuery(options.metric, {}), options.source)
    for result in results:
        if isinstance(result, Listed):
            counts.add(result.series, result.seen_ms)
        else:
            bad += 1
    ranks = {
        "metrics": counts.metrics(options.top, by_new=options.by == "growth"),
        "tag_keys": counts.tag_keys(options.top, by_new=options.by == "growth"),
        "tag_values": counts.tag_values(options.top, by_new=options.by == "growth"),
    }
    if options.rejected:
        ranks["producers"] = producers(_letters(options.rejected), options.top)
    if options.output == "json":
        print(json.dumps(_json(counts, since_ms, ranks), indent=2, ensure_ascii=False))
    elif picture is not None:
        picture.write_bytes(_picture(ranks, options.by))
        print(f"wrote {picture}")
    else:
        print("\n\n".join(_tables(ranks)))
    note(f"{counts.series:,} series, {counts.new:,} of them new, from {where}")
    if counts.undated:
        note(f"of {counts.undated:,} series it is not known when they were first seen")
    if bad:
        print(f"{bad:,} rows could not be read: `timebeam check` says why", file=sys.stderr)
    return 1 if bad else 0


def producers(letters: Iterable[Rejected], most: int) -> list[Rank]:
    """Who sent new series that were rejected: records by attribute of their messages, as KEY=VALUE."""
    counted: collections.Counter[str] = collections.Counter()
    for rejected in letters:
        if rejected.reason is Reason.SERIES_LIMIT:
            attributes = rejected.envelope.attributes if rejected.envelope is not None else {}
            attributes = attributes or {"source": rejected.source}
            counted.update(f"{key}={value}" for key, value in attributes.items())
    return [Rank(name, count, count, 1) for name, count in counted.most_common(most)]


def _letters(patterns: Sequence[str]) -> Iterator[Rejected]:
    """The dead letters in files; raises UsageError if there is no such file, or it holds anything else."""
    try:
        files = match(patterns)
    except OSError as error:
        raise UsageError(f"--rejected: {error}") from error
    for file in files:
        with FileSystems.open(file.path) as lines:
            for line in lines:
                try:
                    yield from_json(line).rejected
                except ValueError as error:
                    raise UsageError(
                        f"--rejected: {file.path} does not hold dead letters: {error}"
                    ) from error


def _json(counts: Cardinality, since_ms: int, ranks: Ranks) -> dict[str, Any]:
    """All figures, as JSON holds them."""
    return {
        "series": counts.series,
        "new": counts.new,
        "undated": counts.undated,
        "since_ms": since_ms,
        **{kind: [dataclasses.asdict(rank) for rank in of_kind] for kind, of_kind in ranks.items()},
    }


def _tables(ranks: Ranks) -> Iterator[str]:
    for kind, of_kind in ranks.items():
        headings = ("rejected",) if kind == "producers" else ("series", "new", "values")
        lines = ["".join(f"{heading:>12} " for heading in headings) + f" {_HEADINGS[kind]}"]
        for rank in of_kind:
            counts = (rank.series, rank.new, rank.values)[: len(headings)]
            name = printable(rank.name) + (f"  ({printable(rank.largest_key)})" if rank.largest_key else "")
            lines.append("".join(f"{count:>12,} " for count in counts) + f" {name}")
        yield "\n".join(lines)


def _picture(ranks: Ranks, by: str) -> bytes:
    """Bars of each kind, as PNG: all series, and of these the new ones in front."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 4 * len(ranks)), dpi=110, layout="constrained")
    for axes, (kind, of_kind) in zip(
        figure.subplots(len(ranks), squeeze=False)[:, 0], ranks.items(), strict=True
    ):
        names = [plain(printable(rank.name[:60])) for rank in of_kind]
        axes.barh(names, [rank.series for rank in of_kind], color="#9bb8d3", label="series")
        axes.barh(names, [rank.new for rank in of_kind], color="#d1495b", label="new", height=0.4)
        axes.invert_yaxis()
        axes.set_title(f"{_HEADINGS[kind]}s by {by}", loc="left", fontweight="bold")
        axes.legend(frameon=False)
    content = io.BytesIO()
    figure.savefig(content, format="png")
    return content.getvalue()
