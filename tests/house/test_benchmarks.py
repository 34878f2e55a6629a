"""The figures of benchmarks: what is committed agrees, and what moved is told from noise."""

from __future__ import annotations

import json
from typing import Any

import pytest

from benchmarks.bench import SUITE, table
from benchmarks.compare import Move, moves
from benchmarks.tables import COSTS, FIGURES, PAGE, costs, with_tables


@pytest.fixture(scope="module")
def figures() -> Any:
    return json.loads(FIGURES.read_text("utf-8"))


def test_the_tables_of_the_page_are_those_of_the_committed_figures(figures: Any) -> None:
    page = PAGE.read_text("utf-8")
    assert with_tables(page, figures) == page
    assert page.count("<!-- end -->") == len(SUITE)  # not `engines`, but `machine`


def test_the_costs_of_plan_are_those_of_the_committed_figures(figures: Any) -> None:
    assert costs(figures) == json.loads(COSTS.read_text("utf-8"))


def test_a_table_has_ratios_first_and_gaps_where_a_case_has_no_figure() -> None:
    assert table({"a": {"seconds": [3, 1, 2]}, "b": {"times a": [0.5], "seconds": [1234]}}) == (
        "| | times a | seconds |\n|---|---|---|\n| a |  | 2 |\n| b | 0.50 | 1,234 |"
    )


def report(**by_name: list[float]) -> dict[str, Any]:
    return {"benchmarks": {"ingest": {"cases": {"json": by_name}}}}


@pytest.mark.parametrize(
    ("name", "old", "new", "moved"),
    [
        ("seconds", [1.0, 1.2, 1.1], [1.3, 1.4, 1.5], True),
        ("seconds", [1.0, 1.2, 1.1], [1.15, 1.4, 1.5], False),  # they overlap
        ("seconds", [1.0, 1.0, 1.0], [1.04, 1.04, 1.04], False),  # less than a twentieth
        ("seconds", [1.0], [1.3], False),
        ("seconds", [1.0], [1.4], True),
        ("bytes/point", [8.0], [8.1], True),
    ],
)
def test_a_figure_moved_or_is_noise(name: str, old: list[float], new: list[float], moved: bool) -> None:
    assert bool(list(moves(report(**{name: old}), report(**{name: new})))) == moved


def test_ratios_are_told_first_and_figures_of_one_file_not_at_all() -> None:
    old, new = report(seconds=[1.0], times=[1.0], gone=[1.0]), report(seconds=[2.0], times=[3.0])
    expected = [Move("ingest", "json", "times", 1.0, 3.0), Move("ingest", "json", "seconds", 1.0, 2.0)]
    assert list(moves(old, new)) == expected
