"""Random histories of fixed seeds, on every run the same; `make test-long SEEDS=…` runs others."""

from __future__ import annotations

import pytest

from tests.system.draw import history_of
from tests.system.histories import run

SHORT, ALL = 4, 8


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=pytest.mark.long if seed > SHORT else []) for seed in range(1, ALL + 1)]
)
def test_tables_and_answers_agree_with_the_model(emulator: str, bigtable: tuple[str, str], seed: int) -> None:
    failure = run(history_of(seed), emulator, bigtable)
    assert failure is None, (
        f"{failure.text}\nmake it small: .venv/bin/python -m tests.system.histories --seed {seed}"
    )
