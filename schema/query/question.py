"""What a query asks: which series, in which groups, and what of their points.

Filters of tag values: query/filter/TagVFilter of OpenTSDB 2.4.1 and its seven kinds.

| kind | passes a value that |
|---|---|
| literal_or, iliteral_or | is one of some, separated by `|`; the `i` kinds ignore case |
| not_literal_or, not_iliteral_or | is none of them |
| wildcard, iwildcard | has the texts between asterisks in it (`_passes_wildcard`) |
| regexp | has a match of the pattern in it, in linear time (`timebeam.schema.bits.regex`) |

A series without the tag key of a filter does not pass, whatever the kind (core/TsdbQuery.findGroupBys).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from timebeam.schema.bits.regex import PatternError, compiled
from timebeam.schema.bits.times import ends_before
from timebeam.schema.core.points import Series
from timebeam.schema.core.selection import Selection
from timebeam.schema.query.aggregate import AGGREGATORS, MAX_COUNTER, RateOptions
from timebeam.schema.query.downsample import Downsampling, Fill, QueryRange

LITERAL_OR, WILDCARD = "literal_or", "wildcard"
KINDS = (LITERAL_OR, "iliteral_or", "not_literal_or", "not_iliteral_or", WILDCARD, "iwildcard", "regexp")

MOST_PATTERN = 1_000
"""Characters of a regular expression: RE2 takes up to 0.1 ms for each, and other threads wait meanwhile."""


@dataclasses.dataclass(frozen=True, slots=True)
class TagFilter:
    """A filter of the values of one tag key.

    Attributes:
      kind: one of `KINDS`.
      key: the tag key.
      text: the literals, the glob or the pattern.
      group_by: whether there is a result for each value that passes.
      ignores_case: of a wildcard; see `of_value`.
    """

    kind: str
    key: str
    text: str
    group_by: bool = False
    ignores_case: bool = False
    _passes: Callable[[str], bool] = dataclasses.field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Checks the filter and compiles it, once for all series and for as long as the query lasts.

        Raises:
          ValueError: there is no such kind, or the text is none for it; in a TSD's words where it has some.
        """
        if self.kind not in KINDS:
            raise ValueError(f"Could not find a tag value filter of the type: {self.kind}")
        if not self.key:
            raise ValueError("Filter must have a tagk")
        if not self.text:
            raise ValueError("Filter cannot be null or empty")
        if self.kind.endswith("literal_or") and self.text == "|":
            raise ValueError("Filter must contain more than just a pipe")
        if self.kind.endswith("wildcard") and "*" not in self.text:
            raise ValueError("Filter must contain an asterisk")
        if self.kind == "regexp" and len(self.text) > MOST_PATTERN:
            raise ValueError(
                f"Filter is a regular expression of {len(self.text):,} characters; at most {MOST_PATTERN:,} "
                "are allowed: shorten it, or use literal_or"
            )
        try:
            object.__setattr__(self, "_passes", _compiled(self))
        except PatternError as error:
            raise ValueError(f"Unsupported regular expression: {error}") from error

    def __reduce__(self) -> tuple[type[TagFilter], tuple[object, ...]]:
        return TagFilter, (self.kind, self.key, self.text, self.group_by, self.ignores_case)

    @classmethod
    def of_value(cls, key: str, value: str, *, group_by: bool) -> TagFilter:
        """The filter of `key=value` in a query: a kind with its text in parentheses, a glob, or literals.

        A glob that is written so ignores case (TagVFilter.getFilter).

        >>> TagFilter.of_value("host", "web01|web02", group_by=True).passes("web02")
        True
        >>> TagFilter.of_value("host", "WEB*", group_by=True).passes("web02")
        True
        >>> TagFilter.of_value("host", "regexp(web[0-9]+)", group_by=False).passes("db01")
        False

        Raises:
          ValueError: see `TagFilter`, or the parentheses do not match.
        """
        kind, parenthesis, text = value.partition("(")
        if parenthesis:
            if not value.endswith(")"):
                raise ValueError(f"Filter must end with a ')': {value}")
            return cls(kind.lower(), key, text[:-1], group_by)
        if "*" in value:
            return cls(WILDCARD, key, value, group_by, ignores_case=True)
        return cls(LITERAL_OR, key, value, group_by)

    @property
    def literals(self) -> frozenset[str]:
        """The texts between pipes, the empty ones at the end left out, as Java splits them."""
        return frozenset(self.text.rstrip("|").split("|"))

    def passes(self, value: str) -> bool:
        """Whether a value of the tag key passes."""
        return self._passes(value)


def _compiled(tag_filter: TagFilter) -> Callable[[str], bool]:
    kind, text = tag_filter.kind, tag_filter.text
    ignores_case = tag_filter.ignores_case or kind.startswith(("i", "not_i"))
    if kind == "regexp":
        regex = compiled(text)
        return lambda value: regex.search(value) is not None
    if kind.endswith("wildcard"):
        glob = text.lower() if ignores_case else text
        return lambda value: _passes_wildcard(glob, value.lower() if ignores_case else value)
    is_not = kind.startswith("not_")
    literals = tag_filter.literals
    if ignores_case:
        literals = frozenset(literal.lower() for literal in literals)
    return lambda value: ((value.lower() if ignores_case else value) in literals) is not is_not


def _passes_wildcard(glob: str, value: str) -> bool:
    """TagVWildcardFilter.match: its texts must follow each other loosely, and only one end is held fast.

    `*b` must be at the end and `a*` at the start; `a*b` need only be in the value, anywhere.
    """
    starts_open, ends_open = glob.startswith("*"), glob.endswith("*")
    texts = glob.strip("*").split("*")
    if starts_open and not ends_open and not value.endswith(texts[-1]):
        return False
    if ends_open and not starts_open and not value.startswith(texts[0]):
        return False
    index = 0
    for text in texts:
        if value.find(text, index) < 0:
            return False
        index += len(text)
    return True


def literals_of(filters: Sequence[TagFilter]) -> dict[str, frozenset[str]]:
    """For each tag key the values that its literal_or filters name; empty for a key without such a filter."""
    literals: dict[str, frozenset[str]] = {}
    for tag_filter in filters:
        values = tag_filter.literals if tag_filter.kind == LITERAL_OR else frozenset[str]()
        literals[tag_filter.key] = literals.get(tag_filter.key, frozenset()) | values
    return literals


NONE = "none"
"""The aggregator that keeps every series apart."""


@dataclasses.dataclass(frozen=True, slots=True)
class Question:
    """A query of one metric.

    Attributes:
      tags: for each tag key that a series must have, the values it may have; empty for any.
      group_by: tag keys; the series with equal values for them form a group, and a series that
        lacks one of them is in no group. Aggregator none ignores this.
      aggregator: a key of `AGGREGATORS`, or `none`.
      start_ms, end_ms: first and last time that is shown, both inclusive.
      rate: None for the values themselves.
      filters: of tag values, beside `tags`, which holds their keys too (`literals_of`).
      explicit_tags: whether a series may have no other tag keys than those of `tags`.
      series: the only series that pass; None for all of the metric.
      tsuids: the TSUIDs of `series`; None if the question does not name series by TSUIDs.
      matches: what else a series must pass; None for nothing.
    """

    metric: str
    tags: Mapping[str, frozenset[str]]
    group_by: Sequence[str]
    aggregator: str
    downsampling: Downsampling | None
    start_ms: int
    end_ms: int
    rate: RateOptions | None = None
    filters: Sequence[TagFilter] = ()
    explicit_tags: bool = False
    series: frozenset[Series] | None = None
    tsuids: frozenset[bytes] | None = None
    matches: Callable[[Series], bool] | None = None

    def __post_init__(self) -> None:
        """Checks the query.

        Raises:
          ValueError: unknown aggregator, or a range that ends before it starts.
        """
        if self.aggregator != NONE and self.aggregator not in AGGREGATORS:
            names = ", ".join([*AGGREGATORS, NONE])
            raise ValueError(f"no aggregator {self.aggregator!r}; choose from {names}")
        if self.end_ms < self.start_ms:
            raise ValueError(ends_before(self.start_ms, self.end_ms))

    @property
    def range(self) -> QueryRange:
        """The points that the answer is made of."""
        return QueryRange.of(self.downsampling, self.start_ms, self.end_ms)

    def selection(self, first_ms: int, until_ms: int) -> Selection:
        """What is read in [first_ms, until_ms) of the points that it asks for; see `passes`."""
        return Selection(
            self.metric,
            self.tags,
            first_ms,
            until_ms - 1,
            self.explicit_tags,
            self.tsuids,
            self.passes,
        )

    @property
    def filled_count(self) -> int:
        """About how many intervals each series is filled to; 0 without a fill."""
        how = self.downsampling
        if how is None or how.fill is Fill.NONE or how.interval_ms is None:
            return 0
        return (self.range.until_ms - self.range.first_ms) // how.interval_ms

    @property
    def passing(self) -> Callable[[Series], bool] | None:
        """`passes`, if more is asked than `tags`, which a layout looks for by itself; else None."""
        asks_more = self.series is not None or self.matches or self.explicit_tags or self._by_name
        return self.passes if asks_more else None

    def passes(self, series: Series) -> bool:
        """Whether a series of the metric that has `tags` passes everything else."""
        if self.series is not None and series not in self.series:
            return False
        if self.matches is not None and not self.matches(series):
            return False
        tags = dict(series.tags)
        if self.explicit_tags and tags.keys() != self.tags.keys():
            return False
        return all(item.key in tags and item.passes(tags[item.key]) for item in self._by_name)

    @property
    def _by_name(self) -> Sequence[TagFilter]:
        """The filters that `tags` does not stand for."""
        return [item for item in self.filters if item.kind != LITERAL_OR]


def rate_options(text: str) -> RateOptions:
    """The options of `rate{counter[,max[,reset]]}`, or `rate` for none.

    Raises:
      ValueError: they are wrong, in a TSD's words.
    """
    if "{" not in text:
        return RateOptions()
    if len(text) < len("rate{}"):
        raise ValueError(f"Invalid rate options specification: {text}")
    words = text[5:-1].split(",")
    if len(words) > 3:
        raise ValueError(
            "Incorrect number of values in rate options specification, must be counter[,counter max "
            f"value,reset value], recieved: {len(words)} parts"
        )
    maximum = _whole(words, 1, "Max value of counter", MAX_COUNTER)
    reset = _whole(words, 2, "Reset value of counter", 0)
    return RateOptions(words[0].endswith("counter"), maximum, reset, words[0] == "dropcounter")


def _whole(words: Sequence[str], index: int, noun: str, default: int) -> int:
    """A whole number of 64 bits."""
    if len(words) <= index or not words[index]:
        return default
    try:
        number = int(words[index])
        if abs(number) > MAX_COUNTER:
            raise ValueError("too large")
    except ValueError as error:
        raise ValueError(f"{noun} was not a number, received '{words[index]}'") from error
    return number
