"""`timebeam check`: does every row decode, and do names and UIDs map one to one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from timebeam.pipelines.options.parameters import BIGTABLE, LAYOUT, TABLES, Parameter, parser_of, positive
from timebeam.pipelines.options.values import auditable_of, create_command, target_of
from timebeam.schema.layouts import Row, Scan, Severity
from timebeam.transforms.bigtable.splits import WHOLE_TABLE
from timebeam.transforms.bigtable.tables import check_tables
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


def main(argv: Sequence[str] | None = None) -> int:
    """Lists what is wrong; exit code 1 if there is damage."""
    options = parser_of("check", "Reads all tables of a layout.", EXAMPLES, PARAMETERS).parse_args(argv)
    layout, target = auditable_of(options), target_of(options)
    check_tables(target, layout.tables(), create_command(options))
    rows: dict[str, int] = {}
    counts = dict.fromkeys(Severity, 0)

    reader = ParallelReader(target)

    def read(table: str) -> Iterator[Row]:
        rows[table] = 0
        for row in reader.scan(Scan(table, (WHOLE_TABLE,))):
            rows[table] += 1
            yield row

    for finding in layout.audit(read):
        counts[finding.severity] += 1
        if sum(counts.values()) <= options.most:
            print(f"{finding.severity.value}: {finding.table} row {_key(finding.key)}: {finding.text}")
    unlisted = sum(counts.values()) - options.most
    if unlisted > 0:
        print(f"and {unlisted:,} more (--most lists more)")
    read_text = ", ".join(f"{count:,} of {table}" for table, count in rows.items())
    print(f"rows read: {read_text}; damaged: {counts[Severity.DAMAGE]:,}; notes: {counts[Severity.NOTE]:,}")
    return 1 if counts[Severity.DAMAGE] else 0


def _key(key: bytes) -> str:
    """A row key as text if it is plain ASCII, else in hex."""
    text = key.decode("ascii", "replace")
    return repr(text) if text.isprintable() and "\ufffd" not in text else key.hex()
