"""The options that say which points a query asks for, and how they are aggregated."""

from __future__ import annotations

import dataclasses
import datetime
import zoneinfo
from collections.abc import Iterable, Mapping, Sequence

from timebeam.schema.bits.times import parse_time
from timebeam.schema.query.downsample import Downsampling
from timebeam.schema.query.question import KINDS, Question, TagFilter, literals_of, rate_options

Time = str | int | datetime.datetime
"""As `timebeam query` takes it (`1h-ago`, `2026-11-21`, s or ms since 1970); or a datetime with a zone."""


@dataclasses.dataclass(frozen=True, slots=True)
class SelectionOptions:
    """Which points a query asks for, as `timebeam query` takes it."""

    metric: str | None
    start: str | None
    end: str
    timezone: str
    tag: Sequence[str]
    explicit_tags: bool
    tsuid: Sequence[str]
    aggregator: str
    rate: str | None
    downsample: str | None
    group_by: Sequence[str]

    def question(self, now_ms: int) -> Question:
        """What they ask, TSUIDs aside.

        Raises:
          ValueError: an option is wrong, in a TSD's words where it has some; or `start` is missing.
        """
        if self.start is None:
            raise ValueError("the following options are required: --start")
        if self.metric is not None and self.tsuid:
            raise ValueError("give METRIC or --tsuid, not both")
        if self.metric is None and not self.tsuid:
            raise ValueError("give METRIC, or --tsuid")
        if self.tsuid and (self.tag or self.group_by or self.explicit_tags):
            raise ValueError(
                "--tsuid names the series: leave out --tag, --explicit-tags and --group-by; --aggregator "
                "none shows each series"
            )
        filters = tag_filters(self.tag)
        if self.rate is not None and not self.rate.startswith("rate"):
            raise ValueError(f"--rate {self.rate}: give rate, rate{{counter}} or rate{{dropcounter}}")
        return Question(
            self.metric or "",
            literals_of(filters),
            self.group_by,
            self.aggregator,
            Downsampling.parse(self.downsample, self.timezone) if self.downsample else None,
            parse_time(self.start, now_ms, self.timezone),
            parse_time(self.end, now_ms, self.timezone),
            None if self.rate is None else rate_options(self.rate),
            filters,
            self.explicit_tags,
        )


def tag_filters(texts: Iterable[str]) -> list[TagFilter]:
    """The filters of `--tag`.

    Raises:
      ValueError: one is wrong, in a TSD's words where it has some.
    """
    filters = []
    for text in texts:
        key, equals, pattern = text.partition("=")
        if not key or not equals or not pattern:
            raise ValueError(f"--tag {text}: give KEY=VALUE, as in host=web01|web02 or host=regexp(web.*)")
        try:
            filters.append(TagFilter.of_value(key, pattern, group_by=False))
        except ValueError as error:
            is_filter = pattern.partition("(")[0].lower() in KINDS
            hint = "" if is_filter else f"; for the value itself give {key}=literal_or({pattern})"
            raise ValueError(f"--tag {text}: {error}{hint}") from error
    return filters


def time_text(when: Time) -> str:
    """A time as an option takes it; raises ValueError for a datetime without a time zone."""
    if not isinstance(when, datetime.datetime):
        return str(when)
    if when.tzinfo is None:
        raise ValueError(f"{when!r} has no time zone: give one, as datetime.UTC")
    return f"{int(when.timestamp() * 1000)}ms"


def tag_text(key: str, values: str | Sequence[str]) -> str:
    """A tag key and the values that it may have, as `--tag` takes them.

    >>> tag_text("host", ["a", "b"]), tag_text("host", "*"), tag_text("host", "a(1)")
    ('host=a|b', 'host=*', 'host=literal_or(a(1))')
    """
    texts = [values] if isinstance(values, str) else list(values)
    joined = "|".join(texts)
    if "*" in texts:
        return f"{key}=*"
    return f"{key}=literal_or({joined})" if {"*", "("} & {*joined} else f"{key}={joined}"


def check_arguments(metric: object, tags: object, group_by: object, timezone: str) -> None:
    """Raises ValueError for arguments of a query in Python that cannot be options."""
    try:
        zoneinfo.ZoneInfo(timezone)
    except (ValueError, OSError, zoneinfo.ZoneInfoNotFoundError):
        raise ValueError(f"{timezone!r} is not a time zone: give one such as Europe/Berlin") from None
    if metric is not None and not isinstance(metric, str):
        raise ValueError(
            f"metric is {metric!r}: give the name of one metric; for several, "
            "pandas.concat([database.query(name, ...).to_pandas() for name in names])"
        )
    if tags is not None and not isinstance(tags, Mapping):
        raise ValueError(f"tags is {tags!r}: give a dict, as {{'host': 'web01'}}")
    arguments = {f"tags[{key!r}]": values for key, values in (tags or {}).items()} | {"group_by": group_by}
    for name, texts in arguments.items():
        is_list = isinstance(texts, Iterable) and not isinstance(texts, bytes)
        if not is_list or not all(isinstance(text, str) for text in texts):
            raise ValueError(f"{name} is {texts!r}: give a text, or a list of texts")
