"""One typed declaration of each parameter of each job: the source of its command-line options, of the
README's tables and of the templates' metadata (`pipelines.templates`)."""

from __future__ import annotations

import argparse
import dataclasses
import enum
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from apache_beam.io.filesystems import FileSystems

from schema.layouts import LAYOUTS
from schema.layouts.kairosdb.options import RowSpec
from schema.layouts.opentsdb.options import CellTime, Decimals
from schema.messages.avro import Encoding
from schema.messages.avro_schema import OWN_SCHEMAS
from schema.messages.influx import METRIC
from schema.messages.influx_line import Booleans, Precision
from schema.messages.kairosdb_rules import Ttl
from transforms.records import RecordEncoding


class UsageError(ValueError):
    """The command line cannot be carried out; exit code 2."""


class TemplateType(enum.Enum):
    """Types of the parameters of Dataflow templates that are in use here (`ParameterType` of its API)."""

    TEXT = "TEXT"
    BOOLEAN = "BOOLEAN"
    NUMBER = "NUMBER"
    ENUM = "ENUM"
    READ_FILE = "GCS_READ_FILE"
    SUBSCRIPTION = "PUBSUB_SUBSCRIPTION"


BUCKET_PATH = r"gs://[a-z0-9][-_.a-z0-9]*/.+"
LETTERS = rf"{BUCKET_PATH}|projects/[^/]+/topics/[^/]+"
"""Where the dead letters of a job on many machines can go."""

DAY = r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
TIME = rf"now|[0-9]+(ms|[smhdwny])-ago|[0-9]+|{DAY}(T[0-9:.]+(Z|[-+][0-9:]+)?)?"
"""Times as `schema.query.times.parse_time` reads them."""


@dataclasses.dataclass(frozen=True, slots=True)
class Parameter:
    """One option of a job.

    Attributes:
      name: with underscores, as Beam's options; `--name` on the command line.
      help: what it does, its unit and, where it needs one, an example.
      kind: makes the value from its text.
      default: None means none: see `required`.
      many: takes several values.
      label: its name in a form; made from `name` if empty.
      template: what a template says that it is; made from `kind` and `choices` if None.
      regex: what its text must match as a whole; made from `kind` and `choices` if empty.
      example: a text that it can have; made from the default and `choices` if empty.
      local: why it is an option of the command alone and not a parameter of templates.
    """

    name: str
    help: str
    group: str
    kind: Callable[[str], Any] = str
    default: Any = None
    choices: tuple[str, ...] = ()
    required: bool = False
    many: bool = False
    label: str = ""
    template: TemplateType | None = None
    regex: str = ""
    example: str = ""
    local: str = ""


def boolean(text: str) -> bool:
    """`true` or `false`, as templates pass them."""
    try:
        return {"true": True, "false": False}[text.lower()]
    except KeyError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false") from None


def positive(text: str) -> int:
    """A whole number of at least 1."""
    if not text.isascii() or not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of at least 1")
    return int(text)


def not_negative(text: str) -> float:
    """A number of at least 0."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of at least 0")
    return number


def names(members: type[enum.Enum]) -> tuple[str, ...]:
    """The values of an enum, as choices."""
    return tuple(str(member.value) for member in members)


def schema_text(text: str) -> str:
    """The name of one of our own Avro schemas as it is, else the content of the file of that name."""
    if text in OWN_SCHEMAS:
        return text
    try:
        with FileSystems.open(text) as file:
            return str(file.read(), "utf-8")
    except (OSError, ValueError) as error:
        raise argparse.ArgumentTypeError(f"cannot read the schema {text!r}: {error}") from None


FORMAT = (
    Parameter(
        "influx_metric",
        "influx: the metric of a field; must hold {field}",
        "Format",
        default=METRIC,
        regex=r".*\{field\}.*",
    ),
    Parameter(
        "influx_precision",
        "influx: unit of the timestamps; what is finer than ms is cut to ms",
        "Format",
        default=Precision.NANOSECONDS.value,
        choices=names(Precision),
    ),
    Parameter(
        "influx_booleans",
        "influx: refuse boolean fields, or take true and false as the numbers 1 and 0",
        "Format",
        default=Booleans.REFUSE.value,
        choices=names(Booleans),
    ),
    Parameter(
        "avro_encoding",
        "avro: object containers, or records of a schema that you name: as JSON, one per line, or binary, "
        "which is for messages and not for files",
        "Format",
        default=Encoding.CONTAINER.value,
        choices=names(Encoding),
    ),
    Parameter(
        "avro_schema",
        "avro: schema of JSON and binary records: point, point_batch, or a file; point if none is given",
        "Format",
        schema_text,
        regex=rf"{'|'.join(OWN_SCHEMAS)}|{BUCKET_PATH}",
        example="point_batch",
    ),
    Parameter(
        "avro_fields",
        "avro: which field holds what, for schemas of your own: "
        "metric=FIELD,timestamp=FIELD,value=FIELD,tags=FIELD; also tag:KEY=FIELD for one tag, "
        "and metric:=TEXT, tag:KEY:=TEXT for the same text in all records",
        "Format",
        regex=r"[^=,]+=[^,]+(,[^=,]+=[^,]+)*",
        example="metric=name,timestamp=at,value=reading,tags=labels",
    ),
    Parameter(
        "kairosdb_ttl",
        "kairosdb: refuse points with a ttl of their own, or ignore it and store them as others",
        "Format",
        default=Ttl.REFUSE.value,
        choices=names(Ttl),
    ),
    Parameter(
        "records_encoding",
        "records: JSON lines, CSV with a header, or Avro object containers",
        "Format",
        default=RecordEncoding.JSON.value,
        choices=names(RecordEncoding),
    ),
)

DECLARED = "table"
"""The layout of tables that a user declares: no `Layout`, since records have no series."""

RECORDS = "records"
"""The format of records of named fields, which no `MessageFormat` reads."""

TABLES = Parameter(
    "tables",
    "table: the file that declares the tables",
    "Layout",
    template=TemplateType.READ_FILE,
    regex=BUCKET_PATH,
    example="gs://my-bucket/tables.toml",
)

LAYOUT = (
    Parameter(
        "layout",
        "how points are stored; table: in tables that you declare, see --tables",
        "Layout",
        choices=(*LAYOUTS, DECLARED),
        required=True,
    ),
    Parameter(
        "table_prefix",
        "put before the names of all tables",
        "Layout",
        default="",
        regex=r"[-_.a-zA-Z0-9]*",
        example="prod-",
    ),
    Parameter("salt_width", "bytes of salt in row keys (tsd.storage.salt.width)", "Layout", int, 0),
    Parameter("salt_buckets", "salt buckets (tsd.storage.salt.buckets)", "Layout", int, 20),
    Parameter("uid_width_metric", "bytes of a metric UID (tsd.storage.uid.width.metric)", "Layout", int, 3),
    Parameter("uid_width_tagk", "bytes of a tag key UID (tsd.storage.uid.width.tagk)", "Layout", int, 3),
    Parameter("uid_width_tagv", "bytes of a tag value UID (tsd.storage.uid.width.tagv)", "Layout", int, 3),
    Parameter("max_tags", "tags that a series may have (tsd.storage.max_tags)", "Layout", int, 8),
    Parameter(
        "decimals",
        "bytes of decimal values: exact (4 where they hold the value, else 8: telnet put), double (always "
        "8: HTTP; use it for tables that a TSD writes over HTTP), float (always 4: tsdb import)",
        "Layout",
        default="exact",
        choices=names(Decimals),
    ),
    Parameter(
        "cell_time",
        "opentsdb: timestamps of cells: arrival of the points, of which the newest wins an instant, or "
        "event: their own time, and the greatest value wins (tsd.storage.use_otsdb_timestamp)",
        "Layout",
        default=CellTime.ARRIVAL.value,
        choices=names(CellTime),
    ),
    Parameter(
        "use_max_value",
        "opentsdb, with --cell_time event: the greatest value of an instant wins, or with false the smallest "
        "(tsd.storage.use_max_value)",
        "Layout",
        boolean,
        True,
    ),
    Parameter(
        "resource_names",
        "heroic-readable: put the names of resources into row keys, beside their values",
        "Layout",
        boolean,
        False,
    ),
    Parameter(
        "row_spec",
        "kairosdb: how times become columns: legacy (stores with data from before KairosDB 1.3.0), "
        "milliseconds (created by 1.3.0 or later), seconds (reading only)",
        "Layout",
        default=RowSpec.LEGACY.value,
        choices=names(RowSpec),
    ),
    Parameter(
        "retention",
        "kairosdb: retention classes in days, as 7,90: each is a family, d7, d90, beside d",
        "Layout",
        default="",
        regex=r"([0-9]+(,[0-9]+)*)?",
        example="7,90",
    ),
    Parameter(
        "retention_class",
        "kairosdb: the class that points are written to, in days; 0: kept for ever",
        "Layout",
        int,
        0,
    ),
)

BIGTABLE = (
    Parameter(
        "project",
        "Google Cloud project; `local` with an emulator",
        "Bigtable",
        local="the launcher gives it: the project in which the job runs",
    ),
    Parameter(
        "instance",
        "Bigtable instance; `local` with an emulator",
        "Bigtable",
        label="Bigtable instance",
        regex=r"[a-z][-a-z0-9]*[a-z0-9]",
        example="my-instance",
    ),
    Parameter(
        "app_profile",
        "app profile of the instance, with single-cluster routing",
        "Bigtable",
        label="Bigtable app profile",
        regex=r"[_a-zA-Z0-9][-_.a-zA-Z0-9]*",
        example="ingest",
    ),
)

SUMMARY = Parameter(
    "summary",
    "form of the summary",
    "Run",
    default="text",
    choices=("text", "json"),
    local="a job on Dataflow prints none",
)


def add_parameters(parser: argparse.ArgumentParser, parameters: Iterable[Parameter]) -> None:
    """Declares parameters as options, in their groups."""
    groups: dict[str, argparse._ArgumentGroup] = {}
    for parameter in parameters:
        if parameter.group not in groups:
            groups[parameter.group] = parser.add_argument_group(parameter.group)
        options: dict[str, Any] = {"help": parameter.help.replace("%", "%%"), "default": parameter.default}
        if parameter.required:
            options["required"] = True
        elif parameter.default not in (None, "", False):
            options["help"] += f" (default: {parameter.default})"
        if parameter.kind is boolean:
            options |= {"nargs": "?", "const": True, "type": boolean, "metavar": "true|false"}
        else:
            options |= {"type": parameter.kind, "metavar": parameter.name.upper()}
            if parameter.choices:
                options |= {"choices": parameter.choices, "metavar": "|".join(parameter.choices)}
            if parameter.many:
                options["nargs"] = "+"
        groups[parameter.group].add_argument(f"--{parameter.name}", **options)


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, and not how the command is used: that is long."""

    def error(self, message: str) -> NoReturn:
        """See `argparse.ArgumentParser.error`."""
        self.exit(2, f"{self.prog}: {message}\n(see `{self.prog} --help`)\n")


def parser_of(
    command: str, description: str, examples: str, parameters: Iterable[Parameter]
) -> argparse.ArgumentParser:
    """The parser of one command, with examples at the end of its help."""
    parser = _Parser(
        prog=f"timebeam {command}",
        description=description,
        epilog=f"examples:\n{examples}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_parameters(parser, parameters)
    return parser
