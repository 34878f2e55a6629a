"""`timebeam tables create`: the tables, families and garbage collection of a layout."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from pipelines import cli
from pipelines.parameters import BIGTABLE, LAYOUT, TABLES, Parameter, boolean, parser_of, tables_of, target_of
from pipelines.rollup import read_config
from transforms.bigtable.tables import create_tables
from transforms.rollup.job import rollup_tables

PARAMETERS = (
    *LAYOUT,
    TABLES,
    Parameter("rollup_config", "opentsdb: with the tables of this rollup configuration", "Layout"),
    *BIGTABLE,
    Parameter("dry_run", "say what would be done, and do nothing", "Run", boolean, False),
)

EXAMPLES = """\
  timebeam tables create --layout opentsdb --project my-project --instance my-instance
  timebeam tables create --layout table --tables market.toml
  timebeam tables create --layout opentsdb --rollup_config rollups.json
  timebeam tables create --layout opentsdb --table_prefix test- --dry_run   (with an emulator)"""


def main(argv: Sequence[str] | None = None) -> int:
    """Creates what is missing; says what it did; doing it again changes nothing."""
    parser = parser_of("tables", "Creates the tables of a layout; safe to repeat.", EXAMPLES, PARAMETERS)
    parser.add_argument("action", choices=["create"], help="create what is missing")
    options = parser.parse_args(argv)
    specs = list(tables_of(options))
    if options.rollup_config:
        specs += rollup_tables(read_config(options.rollup_config), options.table_prefix)
    for line in create_tables(target_of(options), specs, dry_run=options.dry_run):
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(cli.main(["tables", *sys.argv[1:]]))
