"""`timebeam suggest`: names that begin with a text, as OpenTSDB's /api/suggest."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Sequence

from pipelines import cli
from pipelines.options import create_command, layout_of, target_of
from pipelines.parameters import BIGTABLE, LAYOUT, Parameter, UsageError, parser_of, positive
from pipelines.series import check_storable
from schema.layouts.opentsdb.uid_table import KINDS
from schema.meta.search import names_from
from transforms.bigtable.reader import TableReader
from transforms.bigtable.tables import check_tables

PARAMETERS = (
    Parameter("max", "names to list, the first by their bytes", "Names", positive, 25),
    Parameter("output", "form of the list", "Names", default="text", choices=("text", "json")),
    *LAYOUT,
    *BIGTABLE,
)

EXAMPLES = """\
  timebeam suggest metrics sys. --layout opentsdb
  timebeam suggest tagv web --layout opentsdb --max 1000 --output json
  timebeam suggest tagk --layout opentsdb"""


def main(argv: Sequence[str] | None = None) -> int:
    """Lists names; none are a result too."""
    parser = parser_of("suggest", "Lists the names that begin with a text.", EXAMPLES, PARAMETERS)
    parser.add_argument("kind", choices=KINDS, help="of what")
    parser.add_argument("prefix", nargs="?", default="", metavar="PREFIX", help="what the names begin with")
    options = parser.parse_args(argv)
    layout, target = layout_of(options), target_of(options)
    if layout.uids is None:
        raise UsageError(f"layout {layout.name} has no table of names: try `timebeam series`")
    check_storable(options.prefix)
    check_tables(target, layout.tables(), create_command(options))
    found = names_from(layout.uids.table, options.kind, options.prefix, TableReader(target))
    names = [name for name, _ in itertools.islice(found, options.max)]
    if options.output == "json":
        print(json.dumps(names, ensure_ascii=False))
    else:
        for name in names:
            print(name)
    return 0


if __name__ == "__main__":
    sys.exit(cli.main(["suggest", *sys.argv[1:]]))
