"""One typed declaration of each parameter of each job: the source of its command-line options, of
docs/reference/options.md and of the templates' metadata (`timebeam.pipelines.deploy.templates`)."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import enum
import functools
import re
import shlex
import zoneinfo
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from timebeam.schema.bits.times import parse_duration
from timebeam.schema.core.declared_options import Option, OptionKind
from timebeam.schema.series.retention_rules import parse_rules
from timebeam.schema.series.series_patterns import MOST_VALUES, parse_limits

T = TypeVar("T")


class UsageError(ValueError):
    """The command line cannot be carried out; exit code 2. An argument is a line."""

    def __str__(self) -> str:
        return "\n".join(map(str, self.args))


@contextlib.contextmanager
def usage_errors(kinds: type[Exception] | tuple[type[Exception], ...] = ValueError) -> Iterator[None]:
    """Errors of these kinds are wrong usage: what they say is of the options.

    Raises:
      UsageError: instead of them.
    """
    try:
        yield
    except kinds as error:
        raise UsageError(str(error)) from error


class TemplateType(enum.Enum):
    """Types of the parameters of Dataflow templates that are in use here (ParameterType of its API)."""

    TEXT = "TEXT"
    BOOLEAN = "BOOLEAN"
    NUMBER = "NUMBER"
    ENUM = "ENUM"
    READ_FILE = "GCS_READ_FILE"
    SUBSCRIPTION = "PUBSUB_SUBSCRIPTION"


BUCKET_PATH = r"gs://[a-z0-9][-_.a-z0-9]*/.+"
TOPIC = r"projects/[^/]+/topics/[^/]+"
LETTERS = rf"{BUCKET_PATH}|{TOPIC}"
"""Where the dead letters of a job on many machines can go."""

DAY = r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
TIME = rf"now|[0-9]+(ms|[smhdwny])-ago|[0-9]+|{DAY}(T[0-9:.]+(Z|[-+][0-9:]+)?)?"
"""Times as `timebeam.schema.bits.times.parse_time` reads them."""


@dataclasses.dataclass(frozen=True, slots=True)
class Parameter:
    """One option of a job.

    Attributes:
      name: with underscores; see `flag` for the command line.
      help: what it does, its unit and, where it needs one, an example.
      kind: makes the value from its text.
      default: None means none: see `required`.
      most: the greatest number that it can be; None if its kind says.
      many: has several values; the option repeats, with one value each time.
      label: its name in a form; made from `name` if empty.
      template: what a template says that it is; made from `kind` and `choices` if None.
      regex: what its text must match as a whole; made from `kind` and `choices` if empty.
      example: a text that it can have; made from the default and `choices` if empty.
      local: why it is an option of the command alone and not a parameter of templates.
      shown_for: another parameter, and the values of it for which a form shows this one; None for all.
      setting: whether a settings file and an environment variable may give it too.
      stored: whether the stored settings of the tables hold its value.
    """

    name: str
    help: str
    group: str
    kind: Callable[[str], Any] = str
    default: Any = None
    most: float | None = None
    choices: tuple[str, ...] = ()
    required: bool = False
    many: bool = False
    label: str = ""
    template: TemplateType | None = None
    regex: str = ""
    example: str = ""
    local: str = ""
    shown_for: tuple[str, tuple[str, ...]] | None = None
    setting: bool = False
    stored: bool = False

    def value_of(self, text: str) -> Any:
        """The value that a text means.

        Raises:
          argparse.ArgumentTypeError: it means none.
        """
        value = self.kind(text)
        if self.most is not None and value > self.most:
            raise argparse.ArgumentTypeError(f"{_cut(text)} is more than {self.most:,}")
        return value


def flag(name: str) -> str:
    """The option of a parameter as it is written on a command line: `--dry-run` of `dry_run`."""
    return f"--{name.replace('_', '-')}"


def given_as(name: str, text: str) -> str:
    """An option with a value as a command line gives it.

    >>> given_as("salt_width", "1"), given_as("archive", "false")
    ('--salt-width 1', '--no-archive')
    """
    if text in ("true", "false"):
        return flag(name) if text == "true" else f"--no-{flag(name)[2:]}"
    return f"{flag(name)} {shlex.quote(text)}"


MAX_PORT = 65_535
CENTURY_DAYS = 36_500
"""The greatest number of days that an option takes: further back there are no points."""

_NUMBER = re.compile(r"([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?")
_LARGEST = 2**63 - 1
_SHOWN = 80
"""Characters of a wrong value that a message repeats."""


def _cut(text: str) -> str:
    """The beginning of a value, quoted."""
    return repr(text if len(text) <= _SHOWN else text[:_SHOWN] + "…")


def boolean(text: str) -> bool:
    """`true` or `false`, as templates pass them."""
    try:
        return {"true": True, "false": False}[text.lower()]
    except KeyError:
        raise argparse.ArgumentTypeError(f"{_cut(text)} is neither true nor false") from None


def whole(text: str) -> int:
    """A whole number of at least 0, in plain digits."""
    if not text.isascii() or not text.isdigit() or len(text) > 19 or int(text) > _LARGEST:
        raise argparse.ArgumentTypeError(f"{_cut(text)} is not a whole number from 0 to 2**63 - 1")
    return int(text)


def positive(text: str) -> int:
    """A whole number of at least 1, in plain digits."""
    if not text.isascii() or not text.isdigit() or len(text) > 19 or not 1 <= int(text) <= _LARGEST:
        raise argparse.ArgumentTypeError(f"{_cut(text)} is not a whole number from 1 to 2**63 - 1")
    return int(text)


def not_negative(text: str) -> float:
    """A number of at least 0, in plain digits, perhaps with a point and an exponent."""
    number = float(text) if _NUMBER.fullmatch(text) else -1.0
    if not 0 <= number < float("inf"):
        raise argparse.ArgumentTypeError(f"{_cut(text)} is not a number of at least 0")
    return number


def time_zone(text: str) -> str:
    """The name of a time zone."""
    try:
        zoneinfo.ZoneInfo(text)
    except (ValueError, OSError, zoneinfo.ZoneInfoNotFoundError):
        raise argparse.ArgumentTypeError(
            f"{_cut(text)} is not a time zone: give one such as Europe/Berlin"
        ) from None
    return text


def limit_text(text: str, most: int | None = None) -> str:
    """Limits of series, as `--max-series` takes them; none is more than `most`."""
    try:
        limits = parse_limits([text])
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    if most is not None and any(limit.number > most for limit in limits):
        raise argparse.ArgumentTypeError(f"{text[:80]!r} is more than {most:,}")
    return text


def values_limit_text(text: str) -> str:
    """The same, of the values of a tag key."""
    return limit_text(text, MOST_VALUES)


def rules_text(text: str) -> str:
    """Rules of retention, as `--keep-days` takes them."""
    try:
        parse_rules([text])
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def duration(text: str) -> int:
    """A duration in ms."""
    try:
        return parse_duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


@dataclasses.dataclass(frozen=True, slots=True)
class Limit:
    """How much of something is allowed: a number, or a share in percent of a whole."""

    text: str
    number: float
    is_share: bool

    @classmethod
    def parse(cls, text: str) -> Limit:
        """`100`, or `0.5%`, for argparse."""
        if not text.endswith("%"):
            return cls(text, whole(text), False)
        percent = not_negative(text[:-1])
        if percent > 100:
            raise argparse.ArgumentTypeError(f"{_cut(text)} is more than 100%")
        return cls(text, percent, True)

    def is_exceeded(self, count: int, total: int) -> bool:
        """Whether `count`, of `total`, is more than that."""
        return count * 100 > self.number * total if self.is_share else count > self.number


def read_text(path: str) -> str:
    """The text of a file, local or of any file system that Beam knows.

    Raises:
      OSError: it cannot be read.
      ValueError: it is not UTF-8, or of a file system that is not installed.
    """
    if "://" not in path:
        return Path(path).read_text("utf-8")
    from apache_beam.io.filesystems import FileSystems  # takes a second to import

    with FileSystems.open(path) as file:
        return str(file.read(), "utf-8")


def reason_of(error: Exception) -> str:
    """Why a file cannot be read, without the path and the number of the error."""
    return getattr(error, "strerror", None) or str(error)


def text_of(path: str, kind: str) -> str:
    """The text of a file, local or of any file system that Beam knows.

    Args:
      kind: what the file is, in words, for the message.

    Raises:
      UsageError: it cannot be read, or is not UTF-8.
    """
    try:
        return read_text(path)
    except UnicodeDecodeError as error:
        raise UsageError(f"the {kind} {path} is not UTF-8: {error}") from error
    except (OSError, ValueError) as error:  # ValueError: a file system that is not installed
        raise UsageError(f"cannot read the {kind} {path}: {reason_of(error)}") from error


def parsed_file(path: str, kind: str, parse: Callable[[str], T]) -> T:
    """What a file holds; see `text_of`.

    Raises:
      UsageError: the file cannot be read, or `parse` raises ValueError.
    """
    text = text_of(path, kind)
    try:
        return parse(text)
    except ValueError as error:
        raise UsageError(f"the {kind} {path}: {error}") from error


def file_content(text: str, names: Collection[str] = ()) -> str:
    """The content of a file; or `text` itself, if it is one of `names`.

    Raises:
      argparse.ArgumentTypeError: there is no such file.
    """
    if text in names:
        return text
    try:
        return read_text(text)
    except (OSError, ValueError) as error:
        raise argparse.ArgumentTypeError(f"cannot read the schema {text!r}: {reason_of(error)}") from None


def _parameter(option: Option, owner: str, owners: tuple[str, ...]) -> Parameter:
    """The parameter of an option.

    Args:
      owner, owners: `layout` or `format`, and the names of those that declare the option.
    """
    kinds: dict[OptionKind, Callable[[str], Any]] = {
        OptionKind.TEXT: str,
        OptionKind.FLAG: boolean,
        OptionKind.WHOLE: whole,
    }
    is_file = option.kind is OptionKind.FILE
    return Parameter(
        option.name,
        option.help,
        "",
        functools.partial(file_content, names=option.choices) if is_file else kinds[option.kind],
        option.default,
        choices=() if is_file else option.choices,
        regex="|".join((*option.choices, BUCKET_PATH)) if is_file else option.regex,
        example=option.example,
        shown_for=option.shown_for or (owner, owners),
        setting=True,
        stored=option.stored,
    )


def declared_parameters(owner: str, declared: Mapping[str, Sequence[Option]]) -> dict[str, Parameter]:
    """The parameters of the options that layouts, or formats, declare by their names; each once."""
    options = {option.name: option for each in declared.values() for option in each}
    return {
        name: _parameter(option, owner, tuple(name for name, each in declared.items() if option in each))
        for name, option in options.items()
    }


DECLARED = "table"
"""The layout of tables that a user declares: no `Store`, since records have no series."""

RECORDS = "records"
"""The format of records of named fields, which no `MessageFormat` reads."""

TEXT: Mapping[str, Any] = {}
TRUE: Mapping[str, Any] = {"kind": boolean, "default": True}
FLAG: Mapping[str, Any] = {"kind": boolean, "default": False}
SEVERAL: Mapping[str, Any] = {"default": [], "many": True}


def text(default: str) -> Mapping[str, Any]:
    """The attributes of an option that is a text with a default; those of one without are `TEXT`."""
    return {"default": default}


def choice(names: str, default: str | None = None) -> Mapping[str, Any]:
    """The attributes of an option that is one of some words, as `text|json`."""
    return {"choices": tuple(names.split("|")), "default": default}


def several(kind: Callable[[str], Any], most: float | None = None) -> Mapping[str, Any]:
    """The attributes of an option of several values that are no plain texts; else `SEVERAL`."""
    return {**SEVERAL, "kind": kind, "most": most}


def number(
    default: float | None = None, most: float | None = None, kind: Callable[[str], Any] = not_negative
) -> Mapping[str, Any]:
    """The attributes of an option that is a number of at least 0, or one of another kind."""
    return {"kind": kind, "default": default, "most": most}


whole_number = functools.partial(number, kind=whole)
positive_number = functools.partial(number, kind=positive)


def file(example: str, *, many: bool = False) -> Mapping[str, Any]:
    """The attributes of an option that is a file, or several; on Dataflow it is in a bucket."""
    of_bucket = {"template": TemplateType.READ_FILE, "regex": BUCKET_PATH, "example": example}
    return {**of_bucket, **(SEVERAL if many else TEXT)}


def option(key: str, text: str, value: Mapping[str, Any] = TEXT, **more: Any) -> tuple[str, Parameter]:
    """(key, option) of the catalogue: the key is its name, or COMMAND.NAME for what one command means by it.

    Args:
      text: its help.
      value, more: its attributes, by the names of those of `Parameter`.
    """
    return key, Parameter(key.rpartition(".")[2], text, "", **{**value, **more})
