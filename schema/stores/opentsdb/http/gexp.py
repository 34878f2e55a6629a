"""Graphite expressions of /api/query/gexp: functions over the results of queries.

query/expression of OpenTSDB 2.4.1; its parser.jj has the grammar. Functions that join results do so by time;
a TSD joins the n-th points, and fails if one result has more points than the other. `shift` fails in a TSD
for every unit.

    highestMax(sum:1h-avg:sys.cpu.user{host=*},2)
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from timebeam.schema.bits.arrays import Floats, Int64s, Mixed, Values, numbers, to_floats
from timebeam.schema.bits.times import DAY_MS, HOUR_MS, LATEST_MS
from timebeam.schema.core.batches import distinct
from timebeam.schema.query.answer import Result
from timebeam.schema.stores.opentsdb.http.api_request import ApiError

MOST_ARGUMENTS = 256
"""Queries in the expressions of a request, those that come again too."""

_MOST_NESTED = 32
_MOST_SERIES = 26
_MOST_CHARACTERS = 1_000
_WHOLE = re.compile(r"[0-9]{1,9}")
_WINDOW_MS = dict.fromkeys(("sec", "s"), 1000) | dict.fromkeys(("min", "m"), 60_000)
_WINDOW_MS |= dict.fromkeys(("hr", "hour", "h"), HOUR_MS) | dict.fromkeys(("day", "d"), DAY_MS)
_SHIFT_MS = {"sec": 1000, "min": 60_000, "hr": HOUR_MS, "day": DAY_MS, "days": DAY_MS}
_SHIFT_MS |= {"week": 7 * DAY_MS, "weeks": 7 * DAY_MS}
_DURATION = re.compile(r"'([0-9]{1,9}) *([a-z]+)'")


@dataclasses.dataclass(frozen=True, slots=True)
class Indexed:
    """A result, and the index of the sub query that it is of.

    Attributes:
      tsuid: the first of its series; empty in a layout without TSUIDs.
    """

    index: int
    result: Result
    tsuid: bytes = b""


Arguments = Sequence[Sequence[Indexed]]
"""The results of each argument of a function."""

Function = Callable[[Arguments, Sequence[str]], list[Indexed]]
"""Takes the arguments and the other parameters; its results have no more points than its arguments."""


def _absolute(arguments: Arguments, _: Sequence[str]) -> list[Indexed]:
    """Values without their sign."""
    return [_with_values(item, _unsigned(item.result.values)) for item in _all(arguments)]


def _alias(arguments: Arguments, parameters: Sequence[str]) -> list[Indexed]:
    """Results of another name, in which `@key` is a tag's value; without tags and, as in a TSD, sign."""
    if not parameters:
        raise ApiError("Missing the alias")
    renamed = []
    for item in _all(arguments):
        name = ",".join(parameters)
        for key, value in item.result.tags.items():
            _check_alias(len(name) + name.count(f"@{key}") * (len(value) - len(key) - 1))
            name = name.replace(f"@{key}", value)
        _check_alias(len(name))
        values = _unsigned(item.result.values)
        result = dataclasses.replace(item.result, metric=name, tags={}, aggregate_tags=[], values=values)
        renamed.append(dataclasses.replace(item, result=result))
    return renamed


def _check_alias(length: int) -> None:
    """Rejects an alias of so many characters before it is made: a value may hold the next key many times."""
    if length > _MOST_CHARACTERS:
        raise ApiError(f"The alias has {length:,} characters; at most {_MOST_CHARACTERS:,} are allowed")


def _scale(arguments: Arguments, parameters: Sequence[str]) -> list[Indexed]:
    """Values times a factor; integers stay integers if it is one."""
    if not parameters:
        raise ApiError("Missing scaling factor")
    if not re.fullmatch(r"[-0-9.]+", parameters[0]):
        raise ApiError("Unparseable scale factor value: 0.0")
    try:
        factor = float(parameters[0])
    except ValueError as error:
        raise ApiError("Invalid parameter, must be an integer or floating point") from error
    return [_with_values(item, _scaled(item.result.values, factor)) for item in _all(arguments)]


def _scaled(values: Values, factor: float) -> Values:
    with np.errstate(over="ignore", invalid="ignore"):
        floats = to_floats(values) * factor
    if not factor.is_integer() or abs(factor) >= 1 << 63:
        return floats
    if isinstance(values, Mixed):
        bits = np.where(values.is_float, floats.view(np.int64), values.bits * np.int64(factor))
        return numbers(bits, values.is_float)
    return values * np.int64(factor) if values.dtype == np.int64 else floats


def _moving_average(arguments: Arguments, parameters: Sequence[str]) -> list[Indexed]:
    """The average of the last n points, or of a time as in '10min'; 0 until there are so many."""
    if not parameters:
        raise ApiError("Missing moving average window size")
    text = parameters[0]
    count = window_ms = None
    if _WHOLE.fullmatch(text):
        count = int(text)
    else:
        window_ms = _duration_ms(text, _WINDOW_MS, "Unparseable window size")
    if not (count or window_ms):
        raise ApiError("Moving average window must be an integer greater than zero")
    return [
        _with_values(item, _averages(item.result.times_ms, to_floats(item.result.values), count, window_ms))
        for item in _all(arguments)
    ]


def _averages(times_ms: Int64s, floats: Floats, count: int | None, window_ms: int | None) -> Floats:
    """The average of the window that ends at each point, without NaN; 0 where the window has none."""
    is_number = ~np.isnan(floats)
    stops = np.cumsum(is_number)
    if window_ms is None:
        starts = np.maximum(stops - (count or 0), 0)
        is_full = stops >= (count or 0)
    else:
        firsts = np.searchsorted(times_ms, times_ms - window_ms, "right")
        starts, is_full = np.append(0, stops)[firsts], firsts > 0
    averages: Floats = _window_sums(floats[is_number], starts, stops) / np.maximum(stops - starts, 1)
    return np.where(is_full, averages, 0.0)


def _window_sums(values: Floats, starts: Int64s, stops: Int64s) -> Floats:
    """The sum of each window [start, stop), out of sums of 1, 2, 4, … values: no difference of large sums."""
    sums, places, lengths = np.zeros(len(starts)), starts.copy(), stops - starts
    level, width = values.copy(), 1
    while lengths.any():
        has_bit = lengths & 1 == 1
        sums[has_bit] += level[places[has_bit]]
        places[has_bit] += width
        level[:-width] += level[width:]
        lengths, width = lengths >> 1, width * 2
    return sums


def _shift(arguments: Arguments, parameters: Sequence[str]) -> list[Indexed]:
    """The results of the first argument at later times, as in '1day'."""
    if not parameters:
        raise ApiError("Need amount of timeshift to perform timeshift")
    later_ms = _duration_ms(parameters[0], _SHIFT_MS, "Invalid timeshift parameter: eg '10min'")
    if not later_ms:
        raise ApiError("timeshift <= 0")
    if later_ms > LATEST_MS:  # so that no number of shifts exceeds 64 bits
        raise ApiError(f"Timeshift {parameters[0]} is longer than the time from 1970 to the year 9999")
    return [
        dataclasses.replace(
            item, result=dataclasses.replace(item.result, times_ms=item.result.times_ms + later_ms)
        )
        for item in arguments[0]
    ]


def _duration_ms(text: str, units: dict[str, int], message: str) -> int:
    """The milliseconds of a duration in quotes."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ApiError(f"{message}: {text}")
    if match[2] not in units:
        raise ApiError(f"Unknown time unit={match[2]} in window={text}")
    return int(match[1]) * units[match[2]]


def _highest(rank: Callable[[Floats], float]) -> Function:
    """The function that gives the n results of the highest rank, the highest first."""

    def highest(arguments: Arguments, parameters: Sequence[str]) -> list[Indexed]:
        if not parameters:
            raise ApiError("Need aggregation window for moving average")
        if not _WHOLE.fullmatch(parameters[0]):
            raise ApiError(f"Unparseable top n value: {parameters[0]}")
        count = int(parameters[0])
        if count < 1:
            raise ApiError(f"Top n value must be greater than zero: {count}")
        return sorted(_all(arguments), key=lambda item: rank(_numbers(item)), reverse=True)[:count]

    return highest


def _numbers(item: Indexed) -> Floats:
    """The values that are not NaN; minus infinity if there are none."""
    floats = to_floats(item.result.values)
    floats = floats[~np.isnan(floats)]
    return floats if len(floats) else np.array([-np.inf])


def _joining(combine: Callable[[Floats, Floats], Floats]) -> Function:
    """The function that combines results with the same tags; what is missing, or NaN, counts as 0.

    UnionIterator and ExpressionDataPoint: the tags are those of the first argument, none if it has no such
    result; tag keys that are aggregated in one result are in all; the metric is the one with the lowest UID.
    """

    def join(arguments: Arguments, _: Sequence[str]) -> list[Indexed]:
        if not 2 <= len(arguments) <= _MOST_SERIES:
            raise ApiError(f"Must have 2 to {_MOST_SERIES} series, got {len(arguments)} instead")
        by_tags: dict[tuple[tuple[str, str], ...], dict[int, Indexed]] = {}
        for number, items in enumerate(arguments):
            for item in items:
                by_tags.setdefault(tuple(sorted(item.result.tags.items())), {})[number] = item
        joined = []
        for members in (by_tags[tags] for tags in sorted(by_tags)):
            times_ms = distinct(np.concatenate([item.result.times_ms for item in members.values()]))
            values = _column(members.get(0), times_ms)
            with np.errstate(over="ignore", invalid="ignore"):
                for number in range(1, len(arguments)):
                    values = combine(values, _column(members.get(number), times_ms))
            aggregated = {key for item in members.values() for key in item.result.aggregate_tags}
            named = min(members.values(), key=lambda item: item.tsuid)
            tags = dict(members[0].result.tags) if 0 in members else {}
            result = Result(named.result.metric, tags, sorted(aggregated), times_ms, values, annotations=())
            joined.append(Indexed(named.index, result, named.tsuid))
        return joined

    return join


def _column(item: Indexed | None, times_ms: Int64s) -> Floats:
    """The values of a result at some times."""
    column = np.zeros(len(times_ms))
    if item is not None:
        floats = to_floats(item.result.values)
        column[np.searchsorted(times_ms, item.result.times_ms)] = np.where(np.isnan(floats), 0.0, floats)
    return column


def _divided(dividend: Floats, divisor: Floats) -> Floats:
    """Quotients; 0 where the divisor is 0, as JEXL's."""
    return np.divide(dividend, divisor, out=np.zeros(len(dividend)), where=divisor != 0)


def _all(arguments: Arguments) -> list[Indexed]:
    return list(itertools.chain.from_iterable(arguments))


def _with_values(item: Indexed, values: Values) -> Indexed:
    return dataclasses.replace(item, result=dataclasses.replace(item.result, values=values))


def _unsigned(values: Values) -> Values:
    if isinstance(values, Mixed):
        floats = np.abs(values.floats).view(np.int64)
        return numbers(np.where(values.is_float, floats, np.abs(values.bits)), values.is_float)
    return np.abs(values)


FUNCTIONS: dict[str, Function] = {
    "absolute": _absolute,
    "alias": _alias,
    **dict.fromkeys(("diffSeries", "difference"), _joining(np.subtract)),
    **dict.fromkeys(("divideSeries", "divide"), _joining(_divided)),
    "highestCurrent": _highest(lambda floats: float(floats[-1])),
    "highestMax": _highest(lambda floats: float(floats.max())),
    "movingAverage": _moving_average,
    **dict.fromkeys(("multiplySeries", "multiply"), _joining(np.multiply)),
    "scale": _scale,
    **dict.fromkeys(("shift", "timeShift"), _shift),
    **dict.fromkeys(("sumSeries", "sum"), _joining(np.add)),
}
"""By the name that an expression gives them."""


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

    >>> expression = parse_expression("scale(sum:sys.cpu{host=a},10)")
    >>> expression.function, expression.arguments, expression.parameters
    ('scale', ['sum:sys.cpu{host=a}'], ['10'])

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
