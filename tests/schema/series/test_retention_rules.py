"""Rules of how long points and rollups are kept: how they are written, and which one applies."""

from __future__ import annotations

import re
import tomllib

import pytest

from timebeam.schema.series.retention_rules import RULES, RetentionRule, parse_rules, rule_of, rule_texts


@pytest.mark.parametrize(
    ("text", "rules"),
    [
        ("400", [("*", 400, 400, False)]),
        ("debug.*=7", [("debug.*", 7, 7, False)]),
        ("sys.*=30/400", [("sys.*", 30, 400, True)]),
        ("sys.*=30/forever,forever", [("sys.*", 30, None, True), ("*", None, None, False)]),
        ("a=b=forever/0", [("a=b", None, 0, True)]),
    ],
)
def test_a_rule_is_a_pattern_with_days(text: str, rules: list[tuple[str, int, int, bool]]) -> None:
    assert parse_rules([text]) == tuple(RetentionRule(*rule) for rule in rules)
    assert re.fullmatch(RULES, text)


@pytest.mark.parametrize(
    "text", ["", "a=", "=5", "-1", "1.5", "7/", "/7", "7/8/9", "never", "1,", "٣", "123456"]
)
def test_anything_else_is_no_rule(text: str) -> None:
    with pytest.raises(ValueError, match="is not \\[PATTERN=\\]DAYS"):
        parse_rules([text])


def test_a_rule_behind_that_of_all_metrics_never_applies() -> None:
    with pytest.raises(ValueError, match=r"^sys\.\* never applies"):
        parse_rules(["debug.*=1", "7", "sys.*=3"])


def test_the_first_pattern_that_matches_applies() -> None:
    rules = parse_rules(["app.web.*=1", "app.*=2/9"])
    assert [str(rule_of(rules, metric)) for metric in ("app.web.x", "app.y", "z")] == [
        "app.web.*: 1 days",
        "app.*: 2 days, rollups 9 days",
        "None",
    ]


def test_a_table_of_the_settings_file() -> None:
    table = tomllib.loads(
        '"debug.*" = 7\n"audit.*" = "forever"\n"sys.*" = { points = 30, rollups = 400 }\n"*" = 90\n'
    )
    assert rule_texts(table) == ["debug.*=7", "audit.*=forever", "sys.*=30/400", "*=90"]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"a": {"rollups": 7}}, "a: give DAYS, or { points = DAYS, rollups = DAYS }"),
        ({"a": {"points": 7, "row": 7}}, "a: give DAYS"),
        ({"a,b": 7}, "'a,b': a pattern cannot be empty or have a comma"),
        ({"": 7}, "'': a pattern cannot be empty or have a comma"),
        ({"a": -7}, "a: '-7' is not a whole number of days or 'forever'"),
        ({"a": True}, "a: 'True' is not a whole number of days"),
        ({"a": {"points": 7, "rollups": "x" * 100}}, f"a: '{'x' * 80}' is not a whole number of days"),
        ({"*": 7, "a": 7}, "a never applies"),
    ],
)
def test_a_wrong_table(table: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        rule_texts(table)
