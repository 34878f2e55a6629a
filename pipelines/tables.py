"""`timebeam tables create`: the tables, families and garbage collection of a layout."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from pipelines import cli
from pipelines.parameters import BIGTABLE, LAYOUT, Parameter, boolean, layout_of, parser_of, target_of
from transforms.bigtable.tables import create_tables

PARAMETERS = (
    *LAYOUT,
    *BIGTABLE,
    Parameter("dry_run", "say what would be done, and do nothing", "Run", boolean, False),
)

EXAMPLES = """\
  timebeam tables create --layout opentsdb --project my-project --instance my-instance
  timebeam tables create --layout opentsdb --table_prefix test- --dry_run   (with an emulator)"""


def main(argv: Sequence[str] | None = None) -> int:
    """Creates what is missing; says what it did; doing it again changes nothing."""
    parser = parser_of("tables", "Creates the tables of a layout; safe to repeat.", EXAMPLES, PARAMETERS)
    parser.add_argument("action", choices=["create"], help="create what is missing")
    options = parser.parse_args(argv)
    for line in create_tables(target_of(options), layout_of(options).tables(), dry_run=options.dry_run):
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(cli.main(["tables", *sys.argv[1:]]))
