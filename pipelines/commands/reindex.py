"""`timebeam reindex`: the index tables of a layout made anew, from the keys of its data rows."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Sequence

from timebeam.pipelines.options.parameters import BIGTABLE, LAYOUT, Parameter, boolean, parser_of
from timebeam.pipelines.options.values import create_command, layout_with, target_of
from timebeam.schema.layouts import Scan, SeriesIndex
from timebeam.schema.points import Rejected, Series
from timebeam.transforms.bigtable.tables import check_tables
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.ingest.index import merged, requests
from timebeam.transforms.readers.table_reader import scan_rows
from timebeam.transforms.write import write_batch

PARAMETERS = (
    *LAYOUT,
    *BIGTABLE,
    Parameter("dry_run", "read and count, and write nothing", "Run", boolean, False),
)

EXAMPLES = """\
  timebeam reindex --layout heroic --project my-project --instance my-instance
  timebeam reindex --layout kairosdb --row_spec milliseconds --dry_run"""

_ENTRIES_AT_ONCE = 5_000
_SHOWN = 10


def main(argv: Sequence[str] | None = None) -> int:
    """Writes every index row that the keys ask for; exit code 1 if some do not tell, or are refused."""
    parser = parser_of("reindex", "Makes the index tables anew; safe to repeat.", EXAMPLES, PARAMETERS)
    options = parser.parse_args(argv)
    layout, target = layout_with(options, SeriesIndex), target_of(options)
    check_tables(target, layout.tables(), create_command(options))
    silent: list[str] = []
    refused: list[Rejected] = []
    entries = written = 0
    found = iter(_entries(target, layout, silent))
    while some := list(itertools.islice(found, _ENTRIES_AT_ONCE)):
        entries += len(some)
        for table, rows in merged(row for entry in some for row in layout.index(*entry)).items():
            written += len(rows)
            for part in requests(rows) if not options.dry_run else ():
                refused += write_batch(target, table, part)
        print(f"{entries:,} rows read, {written:,} index rows", file=sys.stderr)
    for text in (*silent[:_SHOWN], *(one.message for one in refused[:_SHOWN])):
        print(f"skipped: {text}", file=sys.stderr)
    what = "would be written" if options.dry_run else "written"
    print(
        f"data rows with an entry: {entries:,}; index rows {what}: {written - len(refused):,}; "
        f"keys that do not tell: {len(silent):,}; refused: {len(refused):,}"
    )
    return 1 if silent or refused else 0


def _entries(target: Target, layout: SeriesIndex, silent: list[str]) -> Iterator[tuple[Series, int]]:
    """The entry of every data row; why a key has none goes to `silent`."""
    for spec in layout.tables():
        if not spec.holds_points:
            continue
        for row in scan_rows(target, Scan(spec.name, ((b"", b""),), keys_only=True)):
            try:
                yield layout.entry_of(row.key)
            except ValueError as error:
                silent.append(str(error))
