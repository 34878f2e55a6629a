"""Tables and files of earlier versions are read, and worked on, as by the version that wrote them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.states.histories import HISTORIES
from tests.states.store_state import FOLDER, answer, load, restore
from timebeam.transforms.bigtable.target import Target


@pytest.mark.parametrize("name", HISTORIES)
def test_a_recorded_state_gives_the_recorded_answers(
    name: str, bigtable: tuple[str, str], tmp_path: Path
) -> None:
    state = load(name)
    target = Target(bigtable[0], f"states-{name}")
    restore(state, target, tmp_path)
    _, steps = HISTORIES[name]
    assert {step.name: answer(step, target, tmp_path) for step in steps} == state["answers"]


def test_every_recorded_state_is_tested() -> None:
    assert {path.name.removesuffix(".json.gz") for path in FOLDER.iterdir()} == set(HISTORIES)
