"""Graphite expressions of /api/query/gexp: functions over the results of queries.

query/expression of OpenTSDB 2.4.1. Known are `absolute`, `highestMax` and `diffSeries`.

    highestMax(sum:1h-avg:sys.cpu.user{host=*},2)
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from timebeam.schema.api.errors import ApiError
from timebeam.schema.query.aggregate import union_of
from timebeam.schema.query.answer import Result
from timebeam.schema.query.numbers import Mixed, numbers, to_floats

MOST_ARGUMENTS = 256
"""Queries in the expressions of a request, those that come again too."""

_MOST_NESTED = 32
_MOST_SERIES = 26


@dataclasses.dataclass(frozen=True, slots=True)
class Indexed:
    """A result, and the index of the sub query that it is of.

    Attributes:
      is_joined: whether it is made of several results; its list of annotations is then empty, not missing.
    """

    index: int
    result: Result
    is_joined: bool = False


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
          add_points: takes how many points a function reads or makes, before it does; what it raises goes
            through.

        Raises:
          ApiError: a parameter is missing or wrong.
        """
        results = [
            results_of[argument] if isinstance(argument, str) else argument.evaluate(results_of, add_points)
            for argument in self.arguments
        ]
        add_points(sum(len(item.result.times_ms) for item in itertools.chain.from_iterable(results)))
        return _FUNCTIONS[self.function](results, self.parameters, add_points)


def parse_expression(text: str, depth: int = 0) -> Expression:
    """The expression that a text describes.

    Raises:
      ApiError: it is none, or its function is unknown.
    """
    function, parenthesis, rest = text.strip().partition("(")
    if not parenthesis or not rest.endswith(")") or depth > _MOST_NESTED:
        raise ApiError(f"Failed to parse {text}")
    if function.strip() not in _FUNCTIONS:
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


def _absolute(
    results: Sequence[Sequence[Indexed]], _: Sequence[str], _add_points: Callable[[int], object]
) -> list[Indexed]:
    """Values without their sign."""
    absolute = []
    for item in itertools.chain.from_iterable(results):
        values = item.result.values
        if isinstance(values, Mixed):
            floats = np.abs(values.floats).view(np.int64)
            bits = np.where(values.is_float, floats, np.abs(values.bits))
            values = numbers(bits, values.is_float)
        else:
            values = np.abs(values)
        absolute.append(Indexed(item.index, dataclasses.replace(item.result, values=values)))
    return absolute


def _highest_max(
    results: Sequence[Sequence[Indexed]], parameters: Sequence[str], _add_points: Callable[[int], object]
) -> list[Indexed]:
    """The n results with the largest maxima, the largest first."""
    if not parameters:
        raise ApiError("Need aggregation window for moving average")
    if not parameters[0].isascii() or not parameters[0].isdigit():
        raise ApiError(f"Unparseable top n value: {parameters[0]}")
    count = int(parameters[0])
    if count < 1:
        raise ApiError(f"Top n value must be greater than zero: {count}")
    return sorted(itertools.chain.from_iterable(results), key=_maximum, reverse=True)[:count]


def _maximum(item: Indexed) -> float:
    floats = to_floats(item.result.values)
    floats = floats[~np.isnan(floats)]
    return float(floats.max()) if len(floats) else -np.inf


def _diff_series(
    results: Sequence[Sequence[Indexed]], _: Sequence[str], add_points: Callable[[int], object]
) -> list[Indexed]:
    """The first argument less all others, of results with the same tags; what is missing counts as 0.

    query/expression/UnionIterator and ExpressionDataPoint: the tags are those of the first argument, none if
    it has no such result; tag keys that are aggregated in one result are in all.
    """
    if not 2 <= len(results) <= _MOST_SERIES:
        raise ApiError(f"Must have 2 to {_MOST_SERIES} series, got {len(results)} instead")
    items = list(itertools.chain.from_iterable(results))
    if not items:
        return []
    times_ms = union_of([item.result.times_ms for item in items])
    by_tags: dict[tuple[tuple[str, str], ...], dict[int, Indexed]] = {}
    for number, argument in enumerate(results):
        for item in argument:
            by_tags.setdefault(tuple(sorted(item.result.tags.items())), {})[number] = item
    add_points(len(by_tags) * len(times_ms))
    differences = []
    for tags in sorted(by_tags):
        joined = by_tags[tags]
        values = np.zeros(len(times_ms))
        for number, item in joined.items():
            places = np.searchsorted(times_ms, item.result.times_ms)
            values[places] += to_floats(item.result.values) * (-1 if number else 1)
        first = joined[min(joined)]
        aggregated = sorted({key for item in joined.values() for key in item.result.aggregate_tags})
        result = Result(
            first.result.metric, first.result.tags if 0 in joined else {}, aggregated, times_ms, values
        )
        differences.append(Indexed(first.index, result, is_joined=True))
    return differences


_Function = Callable[[Sequence[Sequence[Indexed]], Sequence[str], Callable[[int], object]], list[Indexed]]

_FUNCTIONS: dict[str, _Function] = {
    "absolute": _absolute,
    "diffSeries": _diff_series,
    "highestMax": _highest_max,
}
"""By the name that an expression gives them."""
