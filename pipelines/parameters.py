"""One typed declaration of each parameter of each job: the source of its command-line options, of the
README's tables and of the templates' metadata (`pipelines.templates`)."""

from __future__ import annotations

import argparse
import dataclasses
import enum
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn

from apache_beam.io.filesystems import FileSystems
from apache_beam.io.gcp.pubsub import parse_topic

from schema.declared.loader import DeclarationError, load
from schema.declared.model import Declaration
from schema.declared.rows import tables as declared_tables
from schema.layouts import LAYOUTS, Layout, Packing, TableSpec
from schema.layouts.kairosdb.options import RowSpec
from schema.layouts.opentsdb.options import CellTime, Decimals
from schema.messages import Framing, message_format
from schema.messages.avro import Encoding
from schema.messages.avro_schema import OWN_SCHEMAS
from schema.messages.influx import METRIC
from schema.messages.influx_line import Booleans, Precision
from schema.messages.kairosdb_rules import Ttl
from transforms.bigtable.target import EMULATOR_VARIABLE, Target
from transforms.dead_letters import TOPIC
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


def format_of(options: argparse.Namespace) -> tuple[dict[str, Any], Framing]:
    """The options of the message format by name, and how its files are cut.

    Raises:
      UsageError: an option makes no sense.
    """
    own = {parameter.name: getattr(options, parameter.name) for parameter in FORMAT}
    if options.format == RECORDS:
        raise UsageError(
            f"--format {RECORDS} is for tables that you declare: --layout {DECLARED} --tables FILE"
        )
    try:
        framing = message_format(options.format, own).framing
    except ValueError as error:
        raise UsageError(str(error)) from error
    return own, framing


def layout_of(options: argparse.Namespace) -> Layout:
    """The layout that the options describe.

    Raises:
      UsageError: a value is out of its range, or the layout is that of declared tables.
    """
    if options.layout == DECLARED:
        raise UsageError(
            f"layout {DECLARED}: declared tables hold records and no series; they are for `tables create`, "
            "`ingest` of files, and `layout`, not for this"
        )
    return layout_named(options.layout, vars(options))


def layout_named(name: str, options: Mapping[str, Any]) -> Layout:
    """The layout of a name, with those of the options that are its own.

    Raises:
      UsageError: a value is out of its range.
    """
    try:
        return LAYOUTS[name].from_options(options)
    except ValueError as error:
        raise UsageError(str(error)) from error


def declaration_of(options: argparse.Namespace) -> Declaration:
    """The declaration that the options name, its tables with their prefix; its warnings go to standard error.

    Raises:
      UsageError: no file is given, or it is wrong.
    """
    if not options.tables:
        raise UsageError(f"--layout {DECLARED} needs the file that declares the tables: --tables FILE")
    try:
        with FileSystems.open(options.tables) as file:
            declaration = load(str(file.read(), "utf-8"), options.tables)
    except UnicodeDecodeError as error:
        raise UsageError(f"{options.tables} is not UTF-8: {error}") from error
    except DeclarationError as error:
        raise UsageError(str(error)) from error
    for warning in declaration.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    return declaration.with_prefix(options.table_prefix)


def tables_of(options: argparse.Namespace) -> Sequence[TableSpec]:
    """The tables of the layout, or of the declaration, that the options describe.

    Raises:
      UsageError: an option, or the declaration, is wrong.
    """
    if options.layout == DECLARED:
        return declared_tables(declaration_of(options))
    return layout_of(options).tables()


def check_writer(options: argparse.Namespace, packing: Packing) -> None:
    """Raises UsageError if the writer cannot do what is asked of it."""
    if options.app_profile and options.bigtable_writer == "beam" and packing is not Packing.APPEND:
        raise UsageError(
            "Beam's writer knows no app profile: add --bigtable_writer direct, or leave --app_profile out"
        )


def letters_of(options: argparse.Namespace, run_ms: int) -> str:
    """Where the dead letters of a run go: a topic, or how names of files begin, the run's time in them.

    Raises:
      UsageError: the name of a topic cannot be one.
    """
    place = str(options.dead_letters)
    if TOPIC.fullmatch(place):
        try:
            parse_topic(place)
        except ValueError as error:
            raise UsageError(f"--dead_letters: {error}") from error
        return place
    stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime(run_ms / 1000))
    return f"{place}-{stamp}{run_ms % 1000:03d}"


def target_of(options: argparse.Namespace) -> Target:
    """The Bigtable instance that the options name.

    Raises:
      UsageError: none is named, and no emulator is configured.
    """
    local = "local" if os.environ.get(EMULATOR_VARIABLE) else None
    project, instance = options.project or local, options.instance or local
    if not project or not instance:
        raise UsageError(
            "give --project and --instance, or start a local Bigtable (`timebeam emulator`) and set "
            f"{EMULATOR_VARIABLE} as it prints"
        )
    return Target(project, instance, options.app_profile)


def create_command(options: argparse.Namespace) -> str:
    """What a user runs to create the tables that the options describe: with all options of layouts given."""
    command = f"timebeam tables create --layout {options.layout}"
    for parameter in (*LAYOUT[1:], TABLES):
        value = getattr(options, parameter.name, parameter.default)
        if value != parameter.default:
            text = str(value).lower() if parameter.kind is boolean else str(value)
            command += f" --{parameter.name} {shlex.quote(text)}"
    if getattr(options, "mark_touched", False):
        command += " --rollup_config FILE"
    if getattr(options, "meta", "off") not in ("off", False):
        command += " --meta"
    if getattr(options, "trees", False):
        command += " --trees"
    return command


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
