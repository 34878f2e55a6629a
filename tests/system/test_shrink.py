"""Shrinking, and what it rests on: histories are data, the same for a seed, and any part can be left out."""

from __future__ import annotations

import pytest

from tests.system.draw import history_of
from tests.system.histories import parse_seeds
from tests.system.shrink import shrink
from tests.system.steps import Compact, History, Ingest, Point, Rollup, from_json, to_json


def points_of(history: History) -> list[Point]:
    return [
        point
        for step in history.steps
        if isinstance(step, Ingest)
        for file in step.files
        for point in file.points
    ]


@pytest.mark.parametrize("seed", range(30))
def test_a_history_is_a_function_of_its_seed_and_survives_json(seed: int) -> None:
    history = history_of(seed)
    assert history_of(seed) == history
    assert from_json(to_json(history)) == history
    assert isinstance(history.steps[0], Ingest)
    kinds = [type(point.value) for point in points_of(history)]
    assert kinds == [type(point.value) for point in points_of(from_json(to_json(history)))]


def test_what_does_not_matter_is_left_out() -> None:
    """A failure that needs one point of 60 and a rollup, whatever else there is."""
    history = next(
        candidate
        for candidate in map(history_of, range(1000))
        if len(points_of(candidate)) > 60
        and {Rollup, Compact} <= {type(step) for step in candidate.steps}
        and isinstance(candidate.steps[0], Ingest)
    )
    culprit = points_of(history)[40]

    def fails(candidate: History) -> bool:
        return culprit in points_of(candidate) and any(isinstance(step, Rollup) for step in candidate.steps)

    smallest = shrink(history, fails, 1000)
    assert points_of(smallest) == [culprit]
    ingest, rollup = sorted(smallest.steps, key=lambda step: isinstance(step, Rollup))
    assert isinstance(ingest, Ingest)
    assert isinstance(rollup, Rollup)
    assert (ingest.trouble, ingest.files[0].broken, ingest.files[0].suffix) == (None, [], "")


def test_the_number_of_runs_is_bounded() -> None:
    runs: list[History] = []

    def fails(candidate: History) -> bool:
        runs.append(candidate)
        return False

    assert shrink(history_of(3), fails, 5) == history_of(3)
    assert len(runs) == 5


def test_seeds_of_a_command_line() -> None:
    assert parse_seeds("3,7,20-22") == [3, 7, 20, 21, 22]
