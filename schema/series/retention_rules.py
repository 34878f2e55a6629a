"""How long points and rollups are kept, by metric (docs/operate/maintenance.md).

A rule is `[PATTERN=]DAYS` or `[PATTERN=]DAYS/DAYS`: the days of points, and of rollups if they have days of
their own. DAYS is a whole number or `forever`. The first rule whose pattern matches a metric applies.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from typing import Any

from timebeam.schema.series.series_patterns import matches

FOREVER = "forever"
_DAYS = rf"([0-9]{{1,5}}|{FOREVER})"
_RULE = rf"([^,]+=)?{_DAYS}(/{_DAYS})?"
RULES = rf"{_RULE}(,{_RULE})*"
"""Rules as one text, with commas between them."""


@dataclasses.dataclass(frozen=True, slots=True)
class RetentionRule:
    """How long the points and rollups of the metrics that match a pattern are kept.

    Attributes:
      days: of points; None: forever.
      rollup_days: of rollups; None: forever.
      separate: whether rollups have days of their own; else those without points go with `rollup --changed`.
    """

    pattern: str
    days: int | None
    rollup_days: int | None
    separate: bool

    def __str__(self) -> str:
        rollups = f", rollups {_shown(self.rollup_days)}" if self.separate else ""
        return f"{self.pattern}: {_shown(self.days)}{rollups}"


def _number(days: str) -> int | None:
    return None if days == FOREVER else int(days)


def _shown(days: int | None) -> str:
    return FOREVER if days is None else f"{days} days"


def parse_rules(texts: Iterable[str]) -> tuple[RetentionRule, ...]:
    """Reads rules, each text one or several.

    >>> [str(rule) for rule in parse_rules(["app.*=30/400,forever"])]
    ['app.*: 30 days, rollups 400 days', '*: forever']

    Raises:
      ValueError: a text is not that, or a rule follows the one of all metrics.
    """
    rules = list[RetentionRule]()
    for text in texts:
        for item in text.split(","):
            if not re.fullmatch(_RULE, item):
                raise ValueError(
                    f"{item[:80]!r} is not [PATTERN=]DAYS or, of points and rollups, [PATTERN=]DAYS/DAYS; "
                    f"DAYS is a whole number or {FOREVER}"
                )
            pattern, _, days = item.rpartition("=")
            if rules and rules[-1].pattern == "*":
                raise ValueError(f"{pattern[:80] or '*'} never applies: put the days of all metrics last")
            points, slash, rollups = days.partition("/")
            rules.append(
                RetentionRule(pattern or "*", _number(points), _number(rollups or points), bool(slash))
            )
    return tuple(rules)


def rule_texts(table: Mapping[str, Any]) -> list[str]:
    """The rules of a table `[retention]`, as `parse_rules` takes them.

    Raises:
      ValueError: a value is neither a number of days, nor `forever`, nor `{ points = …, rollups = … }`.
    """
    texts = []
    for pattern, value in table.items():
        days = value if isinstance(value, dict) else {"points": value}
        if "points" not in days or days.keys() - {"points", "rollups"}:
            raise ValueError(f"{pattern}: give DAYS, or {{ points = DAYS, rollups = DAYS }}")
        if not pattern or "," in pattern:
            raise ValueError(f"{pattern!r}: a pattern cannot be empty or have a comma")
        numbers = [str(days[name]) for name in ("points", "rollups") if name in days]
        for number in numbers:
            if not re.fullmatch(_DAYS, number):
                raise ValueError(f"{pattern}: {number[:80]!r} is not a whole number of days or {FOREVER!r}")
        texts.append(f"{pattern}={'/'.join(numbers)}")
    parse_rules(texts)
    return texts


def rule_of(rules: Iterable[RetentionRule], metric: str) -> RetentionRule | None:
    """The rule of a metric; None if it keeps everything."""
    return next((rule for rule in rules if matches(metric, [rule.pattern])), None)
