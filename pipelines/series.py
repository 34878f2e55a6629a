"""`timebeam series`: which series there are, as OpenTSDB's /api/search/lookup tells, by patterns."""

from __future__ import annotations

import argparse
import csv
import dataclasses
import io
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence

from pipelines import cli
from pipelines.options import create_command, layout_of, target_of
from pipelines.parameters import BIGTABLE, LAYOUT, Parameter, UsageError, parser_of
from pipelines.query import tag_filters
from schema.layouts import Layout
from schema.layouts.opentsdb import uid_table
from schema.layouts.opentsdb.layout import OpenTsdb
from schema.meta.search import Listed, Wanted
from schema.meta.ts_meta import meta_table
from transforms.bigtable.row_keys import scan_keys
from transforms.bigtable.tables import check_tables
from transforms.bigtable.target import BigtableError, Target
from transforms.meta.find import Found, from_data, from_keys, from_meta

_SHOWN = 10

PARAMETERS = (
    Parameter(
        "tag", "k=v, k=v|w, k=web* or k=*: only series that have this tag", "Series", default=[], many=True
    ),
    Parameter(
        "source",
        "opentsdb: the meta table, or the keys of the data table; auto: the meta table if it has anything",
        "Series",
        default="auto",
        choices=("auto", "meta", "data"),
    ),
    Parameter("output", "form of the list", "Series", default="text", choices=("text", "json", "csv")),
    *LAYOUT,
    *BIGTABLE,
)

EXAMPLES = """\
  timebeam series 'sys.cpu.*' --layout opentsdb
  timebeam series 'sys.*' --layout opentsdb --tag 'host=web*' 'dc=lga|sjc' --output csv
  timebeam series sys.load --layout opentsdb --source data
  timebeam series '*' --layout kairosdb --row_spec milliseconds --output json

in a pattern * is any text, also none; quote it, or the shell takes it for files"""


def wanted_of(options: argparse.Namespace) -> Wanted:
    """What is looked for.

    Raises:
      UsageError: a tag is not k=v.
    """
    tags = {key: tuple(sorted(values)) or ("*",) for key, values in tag_filters(options.tag).items()}
    return Wanted(options.metric, tags)


def main(argv: Sequence[str] | None = None) -> int:
    """Lists series, none are a result too; exit code 1 if some could not be read."""
    parser = parser_of("series", "Lists series.", EXAMPLES, PARAMETERS)
    parser.add_argument("metric", metavar="METRIC", help="name of the metric, or a pattern: 'sys.cpu.*'")
    options = parser.parse_args(argv)
    layout, target, wanted = layout_of(options), target_of(options), wanted_of(options)
    check_tables(target, layout.tables(), create_command(options))
    found, where = _find(options, target, layout, wanted)
    tally = _Tally()
    for line in _FORMS[options.output](tally.of(found)):
        print(line)
    for text in tally.bad[:_SHOWN]:
        print(f"skipped: {text}", file=sys.stderr)
    if len(tally.bad) > _SHOWN:
        print(f"and {len(tally.bad) - _SHOWN:,} more", file=sys.stderr)
    print(f"{tally.series:,} series, from {where}", file=sys.stderr)
    return 1 if tally.bad else 0


def _find(
    options: argparse.Namespace, target: Target, layout: Layout, wanted: Wanted
) -> tuple[Iterator[Found], str]:
    """(what is found, where).

    Raises:
      UsageError: the layout cannot tell, or no name can be so.
    """
    if isinstance(layout, OpenTsdb):
        for text in (wanted.metric, *wanted.tags, *(one for of in wanted.tags.values() for one in of)):
            check_storable(text)
        if _uses_meta(options, target, layout):
            table = meta_table(layout.options.table_prefix).name
            return from_meta(target, layout, wanted), f"the meta table {table}"
        return from_data(target, layout, wanted), f"the keys of the data table {layout.data_table}"
    if options.source != "auto":
        raise UsageError(f"--source is for OpenTSDB's tables: layout {layout.name} has its keys only")
    if not any(spec.is_index for spec in layout.tables()):
        raise UsageError(f"the keys of layout {layout.name} do not tell their series")
    tables = ", ".join(spec.name for spec in layout.tables() if spec.holds_points)
    return from_keys(target, layout, wanted), f"the keys of table {tables}"


def check_storable(text: str) -> None:
    """Raises UsageError for a name, or a pattern, that no name of OpenTSDB can match."""
    try:
        uid_table.name_bytes(text)
    except UnicodeEncodeError as error:
        raise UsageError(
            f"{text!r}: OpenTSDB's names are ISO-8859-1, which has no {error.object[error.start]!r}"
        ) from error


def _uses_meta(options: argparse.Namespace, target: Target, layout: OpenTsdb) -> bool:
    """Whether the meta table is asked.

    Raises:
      BigtableError: it is to be asked, and is not there.
    """
    if options.source == "data":
        return False
    spec = meta_table(layout.options.table_prefix)
    try:
        check_tables(target, [spec], create_command(options) + " --meta")
    except BigtableError:
        if options.source == "meta":
            raise
        return False
    return options.source == "meta" or next(scan_keys(target, spec.name), None) is not None


@dataclasses.dataclass
class _Tally:
    """How many series there were, and why others could not be read."""

    series: int = 0
    bad: list[str] = dataclasses.field(default_factory=list)

    def of(self, found: Iterable[Found]) -> Iterator[Listed]:
        """The series that can be read, counted."""
        for one in found:
            if isinstance(one, Listed):
                self.series += 1
                yield one
            else:
                self.bad.append(f"row {one[0].hex()}: {one[1]}")


def _text(found: Iterable[Listed]) -> Iterator[str]:
    for one in found:
        yield f"{one.tsuid.hex().upper()}  {one.series}" if one.tsuid else str(one.series)


def _json(found: Iterable[Listed]) -> Iterator[str]:
    """As the `results` of /api/search/lookup, and what the meta data says beside it."""
    held = ""
    for one in found:
        members: dict[str, object] = {"tsuid": one.tsuid.hex().upper()} if one.tsuid else {}
        members |= {"metric": one.series.metric, "tags": dict(one.series.tags)}
        if one.series.resources:
            members["resources"] = dict(one.series.resources)
        if one.tsuid:
            members |= {"created": one.created_s, "points": one.points}
        yield held + "," if held else "["
        held = json.dumps(members, ensure_ascii=False)
    yield held or "["
    yield "]"


def _csv(found: Iterable[Listed]) -> Iterator[str]:
    yield _csv_line("tsuid", "metric", "tags", "created", "points")
    for one in found:
        tags = " ".join(f"{key}={value}" for key, value in one.series.tags + one.series.resources)
        tsuid = one.tsuid.hex().upper() if one.tsuid else ""
        yield _csv_line(tsuid, one.series.metric, tags, one.created_s, one.points)


def _csv_line(*values: object) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(values)
    return text.getvalue()


_FORMS: dict[str, Callable[[Iterable[Listed]], Iterator[str]]] = {"text": _text, "json": _json, "csv": _csv}


if __name__ == "__main__":
    sys.exit(cli.main(["series", *sys.argv[1:]]))
