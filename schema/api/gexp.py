"""Graphite expressions of /api/query/gexp: functions over the results of queries.

query/expression of OpenTSDB 2.4.1; its parser.jj has the grammar.

    highestMax(sum:1h-avg:sys.cpu.user{host=*},2)
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence

from timebeam.schema.api.gexp_functions import FUNCTIONS, Indexed
from timebeam.schema.api.request import ApiError

MOST_ARGUMENTS = 256
"""Queries in the expressions of a request, those that come again too."""

_MOST_NESTED = 32


@dataclasses.dataclass(frozen=True, slots=True)
class Expression:
    """A function and what it is applied to.

    Attributes:
      arguments: queries in the form of `m`, and expressions.
      parameters: the other arguments, as text.
    """

    function: str
    arguments: Sequence[str | Expression]
    parameters: Sequence[str]

    def queries(self) -> list[str]:
        """The queries within, in their order."""
        queries: list[str] = []
        for argument in self.arguments:
            queries += [argument] if isinstance(argument, str) else argument.queries()
        return queries

    def evaluate(
        self, results_of: Mapping[str, Sequence[Indexed]], add_points: Callable[[int], object]
    ) -> list[Indexed]:
        """The results of the function.

        Args:
          results_of: of each query within.
          add_points: takes how many points a function reads, before it does; what it raises goes through.

        Raises:
          ApiError: a parameter is missing or wrong.
        """
        results = [
            results_of[argument] if isinstance(argument, str) else argument.evaluate(results_of, add_points)
            for argument in self.arguments
        ]
        add_points(sum(len(item.result.times_ms) for item in itertools.chain.from_iterable(results)))
        return FUNCTIONS[self.function](results, self.parameters)


def parse_expression(text: str, depth: int = 0) -> Expression:
    """The expression that a text describes.

    Raises:
      ApiError: it is none, or its function is unknown.
    """
    function, parenthesis, rest = text.strip().partition("(")
    if not parenthesis or not rest.endswith(")") or depth > _MOST_NESTED:
        raise ApiError(f"Failed to parse {text}")
    if function.strip() not in FUNCTIONS:
        raise ApiError(f"Function {function.strip()} has not been implemented")
    arguments: list[str | Expression] = []
    parameters: list[str] = []
    for word in _arguments(rest[:-1], text):
        name, parenthesis, _ = word.partition("(")
        if parenthesis and ":" not in name and "{" not in name:
            arguments.append(parse_expression(word, depth + 1))
        elif ":" in word:
            arguments.append(word)
        else:
            parameters.append(word)
    return Expression(function.strip(), arguments, parameters)


def _arguments(text: str, expression: str) -> list[str]:
    """The texts between the commas that are in no braces and no parentheses."""
    words, start, depth = [], 0, 0
    for index, character in enumerate(text):
        depth += (character in "({") - (character in ")}")
        if depth < 0:
            break
        if character == "," and depth == 0:
            words.append(text[start:index].strip())
            start = index + 1
    words.append(text[start:].strip())
    if depth or not all(words):
        raise ApiError(f"Failed to parse {expression}")
    return words
