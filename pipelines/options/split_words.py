"""Words of a command line: which are options of ours, arguments of the command, or options of Beam.

`--dry-run` and `--dry_run` are the same option. An option takes one value and repeats; `--input` alone takes
all words up to the next option, in commands without arguments, since shells expand patterns. A boolean is
`--x` or `--no-x`; its value, if there is one, follows a `=`.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence

from timebeam.pipelines.options.beam_options import BEAM_OPTIONS
from timebeam.pipelines.options.parameters import Parameter, UsageError, boolean, flag
from timebeam.pipelines.options.parsing import did_you_mean

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
                    raise UsageError(
                        f"argument {name}: expected no value: give {flag(parameter.name)}={text}"
                    )
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
