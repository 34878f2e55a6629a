"`timebeam check`: verifies that every row decodes, and that names and UIDs map one to one."

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from timebeam.pipelines.options.store_settings import hidden_points
from timebeam.pipelines.options.values import create_command, store_of, target_of
from timebeam.schema.core.contract import ReadableStore
from timebeam.schema.core.rows import WHOLE_TABLE, Row
from timebeam.schema.core.selection import Finding, Scan, Severity
from timebeam.transforms.bigtable.existing_tables import check_tables
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.read.table_reader import ParallelReader


def run(options: argparse.Namespace) -> int:
    """Lists what is wrong; exit code 1 if there is damage."""
    target = target_of(options)
    layout = store_of(options, reading=True)
    check_tables(target, layout.tables(), create_command(options))
    findings: list[Finding] = []
    if options.output == "json":
        result = audit(target, layout, findings.append)
        print(json.dumps(_figures(result, findings[: options.most])))
    else:
        result = audit_aloud(target, layout, options.most)
    return 1 if result.damaged else 0


class Audit(NamedTuple):
    """How many rows were read of each table, and how many findings they gave."""

    rows: dict[str, int]
    damaged: int
    notes: int


class _EnoughRowsError(Exception):
    """As many rows were read as are to be looked at."""


def audit(
    target: Target, layout: ReadableStore, show: Callable[[Finding], object], most_rows: int | None = None
) -> Audit:
    """Looks at the rows of a layout.

    Args:
      show: takes each finding as it comes.
      most_rows: ends after about so many rows of points; all of them if None.
    """
    rows: dict[str, int] = {}
    counts = dict.fromkeys(Severity, 0)
    reader = ParallelReader(target)
    of_points = {spec.name for spec in layout.tables() if spec.holds_points}

    def read(table: str) -> Iterator[Row]:
        rows[table] = 0
        for row in reader.scan(Scan(table, (WHOLE_TABLE,))):
            if rows[table] == most_rows and table in of_points:
                raise _EnoughRowsError
            rows[table] += 1
            yield row

    with contextlib.suppress(_EnoughRowsError):
        hidden = hidden_points(target, layout)
        for finding in itertools.chain(() if hidden is None else (hidden,), layout.audit(read)):
            counts[finding.severity] += 1
            show(finding)
    return Audit(rows, counts[Severity.CORRUPT], counts[Severity.NOTE])


def audit_aloud(target: Target, layout: ReadableStore, most: int, most_rows: int | None = None) -> Audit:
    """As `audit`; prints the first `most` findings and the counts."""
    numbers = itertools.count()

    def show(finding: Finding) -> None:
        if next(numbers) < most:
            print(f"{finding.severity.value}: {finding.table} row {_key(finding.key)}: {finding.text}")

    result = audit(target, layout, show, most_rows)
    unlisted = result.damaged + result.notes - most
    if unlisted > 0:
        print(f"and {unlisted:,} more (--most lists more)")
    read_text = ", ".join(f"{count:,} of {table}" for table, count in result.rows.items())
    print(f"rows read: {read_text}; damaged: {result.damaged:,}; notes: {result.notes:,}")
    return result


def _figures(result: Audit, findings: Sequence[Finding]) -> dict[str, Any]:
    """What --output json prints; row keys in hex."""
    listed = [
        {"severity": each.severity.value, "table": each.table, "key": each.key.hex(), "text": each.text}
        for each in findings
    ]
    return {"rows": result.rows, "damaged": result.damaged, "notes": result.notes, "findings": listed}


def _key(key: bytes) -> str:
    """A row key as text if it is plain ASCII, else in hex."""
    text = key.decode("ascii", "replace")
    return repr(text) if text.isprintable() and "\ufffd" not in text else key.hex()
