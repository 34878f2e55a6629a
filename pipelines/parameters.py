"""One typed declaration of each parameter of each job: the source of its command-line options."""

from __future__ import annotations

import argparse
import dataclasses
import enum
import os
from collections.abc import Callable, Iterable
from typing import Any

from apache_beam.io.filesystems import FileSystems

from schema.layouts import LAYOUTS, Layout
from schema.layouts.opentsdb.options import Decimals
from schema.messages import Framing, message_format
from schema.messages.avro import Encoding
from schema.messages.avro_schema import OWN_SCHEMAS
from schema.messages.influx import METRIC
from schema.messages.influx_line import Booleans, Precision
from transforms.bigtable.target import EMULATOR_VARIABLE, Target


class UsageError(ValueError):
    """The command line cannot be carried out; exit code 2."""


@dataclasses.dataclass(frozen=True, slots=True)
class Parameter:
    """One option of a job.

    Attributes:
      name: with underscores, as Beam's options; `--name` on the command line.
      help: what it does, its unit and, where it needs one, an example.
      kind: makes the value from its text.
      default: None means none: see `required`.
      many: takes several values.
    """

    name: str
    help: str
    group: str
    kind: Callable[[str], Any] = str
    default: Any = None
    choices: tuple[str, ...] = ()
    required: bool = False
    many: bool = False


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
    Parameter("influx_metric", "influx: the metric of a field; must hold {field}", "Format", default=METRIC),
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
    ),
    Parameter(
        "avro_fields",
        "avro: which field holds what, for schemas of your own: "
        "metric=FIELD,timestamp=FIELD,value=FIELD,tags=FIELD; also tag:KEY=FIELD for one tag, "
        "and metric:=TEXT, tag:KEY:=TEXT for the same text in all records",
        "Format",
    ),
)

LAYOUT = (
    Parameter("layout", "how points are stored", "Layout", choices=tuple(LAYOUTS), required=True),
    Parameter("table_prefix", "put before the names of all tables", "Layout", default=""),
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
)

BIGTABLE = (
    Parameter("project", "Google Cloud project; `local` with an emulator", "Bigtable"),
    Parameter("instance", "Bigtable instance; `local` with an emulator", "Bigtable"),
    Parameter("app_profile", "app profile of the instance, with single-cluster routing", "Bigtable"),
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
    try:
        framing = message_format(options.format, own).framing
    except ValueError as error:
        raise UsageError(str(error)) from error
    return own, framing


def layout_of(options: argparse.Namespace) -> Layout:
    """The layout that the options describe.

    Raises:
      UsageError: a value is out of its range.
    """
    try:
        return LAYOUTS[options.layout].from_options(vars(options))
    except ValueError as error:
        raise UsageError(str(error)) from error


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
    """What a user runs to create the tables that the options describe."""
    command = f"timebeam tables create --layout {options.layout}"
    return command + (f" --table_prefix {options.table_prefix}" if options.table_prefix else "")


def parser_of(
    command: str, description: str, examples: str, parameters: Iterable[Parameter]
) -> argparse.ArgumentParser:
    """The parser of one command, with examples at the end of its help."""
    parser = argparse.ArgumentParser(
        prog=f"timebeam {command}",
        description=description,
        epilog=f"examples:\n{examples}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_parameters(parser, parameters)
    return parser
