"""The figures at the end of an ingest, from the pipeline's own counters."""

from __future__ import annotations

import collections
import dataclasses
import glob
import json
from collections.abc import Mapping

from apache_beam.runners.runner import PipelineResult

from transforms import metrics
from transforms.metrics import NAMESPACE

_SHOWN = 3  # files of dead letters named in the text


@dataclasses.dataclass(frozen=True, slots=True)
class Summary:
    """What an ingest did; sizes in bytes, time in seconds from the start of the command's work.

    points_read is the sum of stored, duplicate and refused ones, but for rows that Bigtable refused.
    Only rollups have rows_read, and rollup: their own counters (`buckets_1h`, `cells_skipped`).
    """

    points_read: int
    points_duplicate: int
    points_stored: int
    refused: dict[str, int]
    uids_assigned: int
    rows: int
    cells: int
    bytes_written: int
    seconds: float
    dry_run: bool
    dead_letters: list[str]
    delay_ms: dict[str, int] = dataclasses.field(default_factory=dict)
    annotations_read: int = 0
    annotations_written: int = 0
    annotations_deleted: int = 0
    meta_cells: int = 0
    rows_read: int = 0
    rollup: dict[str, int] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, result: PipelineResult, seconds: float, dry_run: bool, dead_letters: str) -> Summary:
        """Reads the counters of a finished pipeline.

        Args:
          dead_letters: prefix of the files of dead letters.
        """
        counters: collections.Counter[str] = collections.Counter()
        for namespace in (NAMESPACE, metrics.ANNOTATIONS_NAMESPACE, metrics.META_NAMESPACE):
            counters.update(metrics.counted(result, namespace))
        kinds = {name: n for name, n in sorted(counters.items()) if n and name.startswith("refused_")}
        reasons = metrics.refused_by_reason()
        # Only a run in this process knows the reasons.
        refused = reasons if sum(reasons.values()) == sum(kinds.values()) else kinds
        found = cls._of(counters, refused, seconds, dry_run, dead_letters, {})
        rollup = dict(sorted(metrics.counted(result, metrics.ROLLUP_NAMESPACE).items()))
        if not rollup:
            return found
        return dataclasses.replace(found, rollup=rollup, rows_read=counters["messages_read"])

    @classmethod
    def of_totals(cls, seconds: float, dry_run: bool, dead_letters: str, delay_ms: dict[str, int]) -> Summary:
        """What this process has counted.

        Args:
          delay_ms: from publish to write, by percentile.
        """
        refused = metrics.refused_by_reason()
        return cls._of(metrics.totals, refused, seconds, dry_run, dead_letters, delay_ms)

    @classmethod
    def _of(
        cls,
        counters: Mapping[str, int],
        refused: dict[str, int],
        seconds: float,
        dry_run: bool,
        dead_letters: str,
        delay_ms: dict[str, int],
    ) -> Summary:
        return cls(
            counters.get("points_read", 0),
            counters.get("points_duplicate", 0),
            counters.get("points_packed", 0),
            refused,
            counters.get("uids_assigned", 0),
            counters.get("rows_written", 0),
            counters.get("cells_written", 0),
            counters.get("bytes_written", 0),
            seconds,
            dry_run,
            sorted(glob.glob(glob.escape(dead_letters) + "-*.jsonl")),
            delay_ms,
            counters.get("annotations_read", 0),
            counters.get("annotations_written", 0),
            counters.get("annotations_deleted", 0),
            counters.get(metrics.META_CELLS, 0),
        )

    @property
    def bytes_per_point(self) -> float:
        """Bytes that Bigtable stores, before compression, for each stored point."""
        return self.bytes_written / self.points_stored if self.points_stored else 0.0

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps(
            dataclasses.asdict(self)
            | {
                "bytes_per_point": round(self.bytes_per_point, 3),
                "points_per_second": round(self.points_stored / self.seconds),
            }
        )

    def _annotations(self) -> list[tuple[str, str]]:
        """The lines of a table for people on annotations; none if there were none."""
        if not self.annotations_read:
            return []
        return [
            ("annotations read", f"{self.annotations_read:,}"),
            ("annotations stored", f"{self.annotations_written:,}"),
            ("annotations deleted", f"{self.annotations_deleted:,}"),
        ]

    def to_text(self) -> str:
        """A table for people."""
        lines = [
            *([("rows read", f"{self.rows_read:,}")] if self.rollup else []),
            ("points read", f"{self.points_read:,}"),
            ("points stored" if not self.dry_run else "points to store", f"{self.points_stored:,}"),
            ("duplicates", f"{self.points_duplicate:,}"),
            ("refused", f"{sum(self.refused.values()):,}"),
            *((f"  {reason}", f"{count:,}") for reason, count in self.refused.items()),
            ("UIDs assigned", f"{self.uids_assigned:,}"),
            *self._annotations(),
            *([("cells of meta data", f"{self.meta_cells:,}")] if self.meta_cells else []),
            *((name.replace("_", " "), f"{n:,}") for name, n in self.rollup.items()),
            ("rows, cells", f"{self.rows:,}, {self.cells:,}"),
            ("bytes per point", f"{self.bytes_per_point:.2f}"),
            ("seconds", f"{self.seconds:.1f}"),
            ("points per second", f"{self.points_stored / self.seconds:,.0f}"),
            *((f"delay {key}, ms", f"{value:,}") for key, value in self.delay_ms.items()),
            *(("dead letters", path) for path in self.dead_letters[:_SHOWN]),
        ]
        more = len(self.dead_letters) - _SHOWN
        if more > 0:
            lines.append(("", f"and {more} more files beside it"))
        text = "\n".join(f"{name:26} {value}" for name, value in lines)
        return ("nothing was written (dry run)\n" if self.dry_run else "") + text
