"""`timebeam suggest`: names that begin with a text, as OpenTSDB's /api/suggest."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence

from timebeam.pipelines.commands.series import check_storable
from timebeam.pipelines.options.command_line import CommandParser, parser_of
from timebeam.pipelines.options.parameters import BIGTABLE, LAYOUT, Parameter, UsageError, positive
from timebeam.pipelines.options.stored import use_stored
from timebeam.pipelines.options.values import create_command, layout_of, target_of
from timebeam.pipelines.output.printable import printable
from timebeam.schema.layouts.opentsdb.select import names_from
from timebeam.schema.layouts.opentsdb.uid_table import KINDS
from timebeam.transforms.bigtable.tables import check_tables
from timebeam.transforms.readers.table_reader import TableReader

PARAMETERS = (
    Parameter("max", "names to list, in the order of their bytes", "Names", positive, 25),
    Parameter("output", "form of the list", "Names", default="text", choices=("text", "json")),
    *LAYOUT,
    *BIGTABLE,
)

EXAMPLES = """\
  timebeam suggest metrics sys. --layout opentsdb
  timebeam suggest tagv web --layout opentsdb --max 1000 --output json
  timebeam suggest tagk --layout opentsdb"""


def command_parser() -> CommandParser:
    """The parser of the command."""
    parser = parser_of("suggest", "Lists names that begin with a prefix.", EXAMPLES, PARAMETERS)
    parser.add_argument("kind", choices=KINDS, help="kind of names")
    parser.add_argument(
        "prefix", nargs="?", default="", metavar="PREFIX", help="beginning of the names; by default all names"
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Lists names; none are a result too."""
    parser = command_parser()
    options = parser.parse_args(argv)
    use_stored(options)
    layout, target = layout_of(options), target_of(options)
    if layout.uids is None:
        raise UsageError(f"layout {layout.name} has no table of names: try `timebeam series`")
    check_storable(options.prefix)
    check_tables(target, layout.tables(), create_command(options))
    matches = names_from(layout.uids.table, options.kind, options.prefix, TableReader(target))
    names = [name for name, _ in itertools.islice(matches, options.max)]
    if options.output == "json":
        print(json.dumps(names, ensure_ascii=False))
    else:
        for name in names:
            print(printable(name))
    return 0
