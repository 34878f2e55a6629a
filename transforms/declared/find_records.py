"""The records that a query of a declared table reads."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from timebeam.schema.declared.codec.decode import Record
from timebeam.schema.declared.codec.selection import ReadPlan, RecordSelection
from timebeam.schema.declared.model import TableLayout
from timebeam.schema.layouts import Finding, Scan, Severity
from timebeam.transforms.bigtable.target import Target
from timebeam.transforms.readers.parallel import ParallelReader


def find_records(
    target: Target, layout: TableLayout, tables: Sequence[str], selection: RecordSelection, plan: ReadPlan
) -> Iterator[Record | Finding]:
    """The selected records of tables of one layout, in the order of the keys; and rows that cannot be read.

    Args:
      tables: names of Bigtable tables; several for tables per day.
      plan: of the selection, by the layout.
    """
    reader = ParallelReader(target)
    for table in tables if plan.ranges else ():
        stored = dataclasses.replace(layout, table=table)
        for row in reader.scan(Scan(table, plan.ranges, key_pattern=plan.key_pattern)):
            try:
                yield from selection.records(stored, row)
            except ValueError as error:
                yield Finding(Severity.DAMAGE, table, row.key, str(error))
