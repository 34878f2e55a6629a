"""Words of a command line: options of ours, arguments, options of Beam; suggestions, and notes of a command.

`--dry-run` and `--dry_run` are the same option. An option takes one value and repeats; `--input` alone takes
all words up to the next option, in commands without arguments, since shells expand patterns. A boolean is
`--x` or `--no-x`; its value, if there is one, follows a `=`.
"""

from __future__ import annotations

import contextvars
import dataclasses
import difflib
import enum
import functools
import re
import sys
from collections.abc import Iterable, Mapping, Sequence

from timebeam.pipelines.options.beam_options import BEAM_OPTIONS
from timebeam.pipelines.options.parameters import Parameter, UsageError, boolean, flag

_ENDS = {"\t": "\\t", "\n": "\\n", "\r": "\\r"}
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def one_line(text: str) -> str:
    """A text without the characters that end a line, move a cursor, or cannot be printed: escaped."""
    return _CONTROL.sub(lambda match: _ENDS.get(match[0], ascii(match[0])[1:-1]), text)


RENAMED = {
    "mark_touched": "mark_changed",
    "max_refused": "max_rejected",
    "refuse": "reject",
    "refused": "rejected",
    "seal": "archive",
    "touched": "changed",
}
"""Commands, options, keys of timebeam.toml and values of options: as they were before 0.1.0, and are now."""


def did_you_mean(word: str, choices: Iterable[str], shown: Mapping[str, str] | None = None) -> str:
    """`: did you mean CHOICE?` for the choice that is most like a word; empty if none is.

    A word that was renamed has its new name: `: it is now CHOICE`.

    Args:
      shown: how to give a choice, if not by itself.
    """
    shown = shown or {}
    names = sorted(choices)
    new = RENAMED.get(_plain(word))
    for choice in names:
        if _plain(choice) == new:
            return f": it is now {shown.get(choice, choice)}"
    close = difflib.get_close_matches(word, names, 1)
    return f": did you mean {shown.get(close[0], close[0])}?" if close else ""


def _plain(word: str) -> str:
    """A name without what an option's has before it and between its words."""
    return word.lstrip("-").replace("-", "_")


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


_WORDS = "input"
"""The option that takes several words."""

_NUMBER = re.compile(r"-\d+|-\d*\.\d+")
_ALIKE = re.compile(r"[^=]+=.*|[0-9][.0-9]*(/.*)?", re.DOTALL)
"""What looks like one more value of an option that repeats, and not like the name of a metric."""


@dataclasses.dataclass(frozen=True, slots=True)
class GivenOption:
    """An option that a command line gives.

    Attributes:
      name: of its parameter.
      word: how messages show it.
      text: its value.
    """

    name: str
    word: str
    text: str


@dataclasses.dataclass(frozen=True, slots=True)
class CommandLine:
    """What a command line gives.

    Attributes:
      words: the arguments of the command.
      rest: Beam's options, and those of a runner that has its own.
      hints: what to do about a word of `words` that is no argument, by its position.
    """

    options: list[GivenOption]
    words: list[str]
    rest: list[str]
    hints: dict[int, str]


def unknown_option(word: str, names: Iterable[str]) -> UsageError:
    """The error for a word that nothing takes.

    Args:
      names: the options that there are, as they are written.
    """
    if not word.startswith("-"):
        return UsageError(f"unexpected argument {word!r}")
    name = word.partition("=")[0]
    by_spelling = {each.replace("_", "-"): each for each in sorted(names, reverse=True)}  # --a-b before --a_b
    near = did_you_mean(name.replace("_", "-"), by_spelling)
    for spelling, each in by_spelling.items():
        if near.endswith(f" {spelling}?"):
            near = near.replace(spelling, each)
    return UsageError(f"unknown option {name}{near}")


class Splitter:
    """Splits the words of a command line into options and arguments."""

    def __init__(
        self,
        parameters: Mapping[str, Parameter],
        instead: Mapping[str, str],
        *,
        takes_words: bool,
        takes_beam: bool,
    ) -> None:
        """A splitter of the command lines of one command.

        Args:
          parameters: of the command, by name.
          instead: by the name of an option that other commands have, how it is given here.
          takes_words: whether `--input` takes all words up to the next option.
          takes_beam: whether Beam's options can be given too.
        """
        self._parameters = {flag(name): parameter for name, parameter in parameters.items()}
        self._instead = {flag(name): words for name, words in instead.items()}
        self._takes_words = takes_words
        self._beam_options = BEAM_OPTIONS if takes_beam else {}

    def split(self, words: Sequence[str]) -> CommandLine:
        """The options and arguments that words are.

        Raises:
          UsageError: an option is unknown, has no value, or has one that it does not take.
        """
        line, remaining = CommandLine([], [], [], {}), list(reversed(words))
        has_runner = bool(self._beam_options) and any(word.partition("=")[0] == "--runner" for word in words)
        while remaining:
            word = remaining.pop()
            if word == "--":
                line.words.extend(reversed(remaining))
                break
            if not _is_option(word):
                line.words.append(word)
                continue
            spelling = self._spelling(word)
            if spelling is not None:
                self._take(line, *spelling, remaining)
            elif word.partition("=")[0] in self._beam_options or has_runner:
                self._take_beam(line, word, remaining)
            else:
                raise self.unknown(word)
        return line

    def unknown(self, word: str, more_options: Iterable[str] = ()) -> UsageError:
        """The error for a word that nothing takes.

        Args:
          more_options: options that there are beside those of the command and of Beam, as they are written.
        """
        if not word.startswith("-"):
            return UsageError(f"unexpected argument {word!r}")
        name, _, text = word.partition("=")
        spelling = name.replace("_", "-")
        is_negative = spelling.startswith("--no-")
        instead = self._instead.get(f"--{spelling[5:]}" if is_negative else spelling)
        if instead is not None:
            return UsageError(
                f"unknown option {name}: give {instead}={text or ('false' if is_negative else 'VALUE')}"
            )
        names = (*self._beam_options, *more_options, *self._parameters)
        shown = self._instead | {each.replace("_", "-"): each for each in names}
        return UsageError(f"unknown option {name}{did_you_mean(spelling, shown, shown)}")

    def _spelling(self, word: str) -> tuple[Parameter, str, str | None] | None:
        """(the parameter of an option, how it is written, its value if one follows a `=`); None without."""
        name, equals, text = word.partition("=")
        name = name.replace("_", "-")
        parameter = self._parameters.get(name)
        if parameter is None and name.startswith("--no-"):
            parameter = self._parameters.get(f"--{name.removeprefix('--no-')}")
            if parameter is not None and parameter.kind is boolean:
                if equals:
                    raise UsageError(f"argument {name}: has no value: use {flag(parameter.name)}={text}")
                return parameter, name, "false"
            parameter = None
        if parameter is None:
            return None
        return parameter, name, text if equals else None

    def _take(
        self, line: CommandLine, parameter: Parameter, word: str, text: str | None, remaining: list[str]
    ) -> None:
        """Takes an option and its values out of the remaining words, the next of which is the last.

        Raises:
          UsageError: it has no value, or one that it does not take.
        """
        if parameter.kind is boolean:
            if remaining and remaining[-1].lower() in ("true", "false"):
                raise UsageError(
                    f"unexpected argument {remaining[-1]!r}: give {flag(parameter.name)}={remaining[-1]}"
                )
            line.options.append(
                GivenOption(parameter.name, flag(parameter.name), "true" if text is None else text)
            )
            return
        texts = [text] if text is not None else []
        takes_words = self._takes_words and parameter.name == _WORDS
        while text is None and remaining and not _is_option(remaining[-1]) and (takes_words or not texts):
            texts.append(remaining.pop())
        if not texts:
            raise UsageError(f"argument {word}: expected a value")
        line.options.extend(GivenOption(parameter.name, word, each) for each in texts)
        if parameter.many and remaining and not _is_option(remaining[-1]):
            hint = f": {word} takes one value; repeat it: {word} {texts[0]} {word} {remaining[-1]}"
            line.hints[len(line.words)] = hint
            if _ALIKE.fullmatch(texts[0]) and _ALIKE.fullmatch(remaining[-1]):
                raise UsageError(f"unexpected argument {remaining[-1]!r}{hint}")

    def _take_beam(self, line: CommandLine, word: str, remaining: list[str]) -> None:
        """Takes an option of Beam, or of a runner, and its value."""
        line.rest.append(word)
        takes_value = self._beam_options.get(word, True) and "=" not in word
        if takes_value and remaining and not _is_option(remaining[-1]):
            line.rest.append(remaining.pop())


def _is_option(word: str) -> bool:
    """Whether a word is an option, and not an argument, a value, or a negative number."""
    return (
        len(word) > 1
        and word.startswith("-")
        and not _NUMBER.fullmatch(word)
        and " " not in word.partition("=")[0]
    )
