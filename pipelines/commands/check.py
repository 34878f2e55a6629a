"`timebeam check`: verifies that every row decodes, and that names and UIDs map one to one."

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from timebeam.pipelines.options.command_line import CommandParser, parser_of
from timebeam.pipelines.options.parameters import BIGTABLE, LAYOUT, TABLES, Parameter, positive
from timebeam.pipelines.options.stored import use_stored
from timebeam.pipelines.options.values import auditable_of, create_command, target_of
from timebeam.schema.layouts import ReadableLayout, Row, Scan, Severity
from timebeam.transforms.bigtable.splits import WHOLE_TABLE
from timebeam.transforms.bigtable.tables import check_tables
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.readers.parallel import ParallelReader

PARAMETERS = (
    *LAYOUT,
    TABLES,
    *BIGTABLE,
    Parameter("most", "findings to list; the rest are counted", "Run", positive, 100),
)

EXAMPLES = """\
  timebeam check --layout opentsdb --project my-project --instance my-instance
  timebeam check --layout opentsdb --salt_width 1 --most 1000
  timebeam check --layout table --tables market.toml"""


def command_parser() -> CommandParser:
    """The parser of the command."""
    return parser_of(
        "check",
        "Verifies that every row decodes, and that names and UIDs map one to one.",
        EXAMPLES,
        PARAMETERS,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Lists what is wrong; exit code 1 if there is damage."""
    options = command_parser().parse_args(argv)
    use_stored(options)
    layout, target = auditable_of(options), target_of(options)
    check_tables(target, layout.tables(), create_command(options))
    return 1 if audit(target, layout, options.most) else 0


class _EnoughRowsError(Exception):
    """As many rows were read as are to be looked at."""


def audit(target: Target, layout: ReadableLayout, most: int, most_rows: int | None = None) -> int:
    """Prints what is wrong with the rows of a layout; returns how many are damaged.

    Args:
      most: findings to list.
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
        for finding in layout.audit(read):
            counts[finding.severity] += 1
            if sum(counts.values()) <= most:
                print(f"{finding.severity.value}: {finding.table} row {_key(finding.key)}: {finding.text}")
    unlisted = sum(counts.values()) - most
    if unlisted > 0:
        print(f"and {unlisted:,} more (--most lists more)")
    read_text = ", ".join(f"{count:,} of {table}" for table, count in rows.items())
    print(f"rows read: {read_text}; damaged: {counts[Severity.DAMAGE]:,}; notes: {counts[Severity.NOTE]:,}")
    return counts[Severity.DAMAGE]


def _key(key: bytes) -> str:
    """A row key as text if it is plain ASCII, else in hex."""
    text = key.decode("ascii", "replace")
    return repr(text) if text.isprintable() and "\ufffd" not in text else key.hex()
