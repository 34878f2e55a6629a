"""A parser of command lines that drops nothing silently, and says in one line what is wrong.

`check_buckets` checks what its words name. `note` and `detail` print what --quiet and --verbose decide.
"""

from __future__ import annotations

import argparse
import contextvars
import difflib
import enum
import functools
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from timebeam.pipelines.options.parameters import UsageError

_ENDS = {"\t": "\\t", "\n": "\\n", "\r": "\\r"}
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def one_line(text: str) -> str:
    """A text without the characters that end a line, move a cursor, or cannot be printed: escaped."""
    return _CONTROL.sub(lambda match: _ENDS.get(match[0], ascii(match[0])[1:-1]), text)


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """`: did you mean CHOICE?` for the choice that is most like a word; empty if none is."""
    close = difflib.get_close_matches(word, sorted(choices), 1)
    return f": did you mean {close[0]}?" if close else ""


class _StoreOnce(argparse.Action):
    """Stores values, as argparse's own `store`, and loses none: those of a repeated list add up.

    Any other option that is repeated with another value is an error.
    """

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        """See `argparse.Action`."""
        if option_string is not None and isinstance(parser, Parser):
            if values == []:  # argparse takes the `--` of `--tag=--` for an end of options
                raise argparse.ArgumentError(self, "expected a value")
            if self.nargs == "+":
                values = parser.add_values(self.dest, values)
            else:
                parser.check_repeated(self.dest, option_string, values)
        setattr(namespace, self.dest, values)


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, and not how the command is used: that is long."""

    def __init__(self, **named: Any) -> None:
        """See `argparse.ArgumentParser`."""
        super().__init__(**named, allow_abbrev=False)
        for name in (None, "store"):
            self.register("action", name, _StoreOnce)
        self._values: dict[str, Any] = {}
        self._words: Sequence[str] = ()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        self._values, self._words = {}, args or ()
        return super().parse_known_args(args, namespace)

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        options, rest = self.parse_known_args(args, namespace)
        if rest:
            self.unknown(rest[0])
        return options

    def check_repeated(self, dest: str, option: str, value: Any) -> None:
        """Ends the program if an option has had another value before."""
        if self._values.setdefault(dest, value) != value:
            self.error(f"{option} is given twice, with different values: give it once")

    def add_values(self, dest: str, values: Sequence[Any]) -> list[Any]:
        """The values of a list so far, in place of its default: with those of one more time."""
        self._values[dest] = [*self._values.get(dest, ()), *values]
        return list(self._values[dest])

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """As argparse does, with the choice that a misspelt value is most like."""
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            near = did_you_mean(str(value), map(str, action.choices or ()))
            raise argparse.ArgumentError(action, error.message + near.replace(":", ";", 1)) from None

    @property
    def given_words(self) -> set[str]:
        """The names of the options that the last command line gave."""
        return set(self._values)

    def options(self) -> set[str]:
        """The names of all options, as they are written."""
        return set(self._option_string_actions)

    def unknown(self, word: str, more_options: Iterable[str] = ()) -> NoReturn:
        """Ends the program because of a word that nothing takes.

        Args:
          more_options: names of options that are taken besides those of this parser.
        """
        if not word.startswith("-"):
            self.error(f"unexpected argument {word!r}")
        name = word.partition("=")[0]
        self.error(f"unknown option {name}" + did_you_mean(name, self.options() | {*more_options}))

    def error(self, message: str) -> NoReturn:
        """See `argparse.ArgumentParser.error`; a required option that is misspelt is not called missing."""
        missing = re.findall(r"--\w+", message) if "arguments are required" in message else []
        if message.startswith("the following arguments are required: ") and not missing:
            message += "; put it before options with several values, which take all words after them"
        for word in self._words:
            name = word.partition("=")[0]
            if not missing or not name.startswith("--") or name in self.options():
                continue
            if did_you_mean(name, missing):
                message = f"unknown option {name}" + did_you_mean(name, missing)
                break
            message += f"; {name}{near}" if (near := did_you_mean(name, self.options())) else ""
        self.exit(2, f"{self.prog}: {one_line(message)}\n(see `{self.prog} --help`)\n")


class Verbosity(enum.Enum):
    """What a command says beside its results and what goes wrong."""

    QUIET = enum.auto()
    """Nothing."""
    NORMAL = enum.auto()
    """Its progress, and notes."""
    VERBOSE = enum.auto()
    """The settings in force and the stack of an error too."""


VERBOSITY = contextvars.ContextVar("VERBOSITY", default=Verbosity.NORMAL)
"""Of the command that runs; `timebeam.pipelines.cli` sets it."""


def note(text: str) -> None:
    """Prints a line on standard error that is no result and no warning; not with --quiet."""
    if VERBOSITY.get() is not Verbosity.QUIET:
        print(text, file=sys.stderr)


def detail(text: str) -> None:
    """Prints a line on standard error with --verbose only."""
    if VERBOSITY.get() is Verbosity.VERBOSE:
        print(text, file=sys.stderr)


_BUCKET = re.compile(r"(?:^|=)gs://([^/?*\[]+)")
_SECONDS = 10


def check_buckets(texts: Iterable[object]) -> None:
    """Checks that buckets exist, each once: those that a text begins with, or names after a `=`.

    Before a command begins: Beam would try for two minutes.

    Raises:
      UsageError: there are no credentials.
      OSError: there is no such bucket, or it cannot be reached.
    """
    for bucket in sorted({name for text in texts for name in _BUCKET.findall(str(text))}):
        _check(bucket)


@functools.cache
def _check(bucket: str) -> None:
    """Checks that a bucket exists; does nothing without the permission for that, which files do not need.

    Raises:
      UsageError, OSError: see `check_buckets`.
    """
    import google.auth
    from google.api_core.exceptions import Forbidden, GoogleAPIError, Unauthorized
    from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError
    from google.cloud.storage import Client
    from requests import RequestException

    try:
        credentials, project = google.auth.default()
    except DefaultCredentialsError as error:
        raise UsageError(
            "no Google Cloud credentials for gs:// paths: run `gcloud auth application-default login`"
        ) from error
    try:
        client = Client(project or bucket, credentials)  # it needs a project; any name will do
        exists = client.bucket(bucket).exists(timeout=_SECONDS, retry=None)
    except (Forbidden, Unauthorized):
        return
    except (GoogleAPIError, GoogleAuthError, RequestException) as error:
        raise ConnectionError(
            f"bucket gs://{bucket} cannot be reached: check the network and the credentials: "
            f"{one_line(str(error))}"
        ) from error
    if not exists:
        raise FileNotFoundError(f"there is no bucket gs://{bucket}: create it, or name another one")
