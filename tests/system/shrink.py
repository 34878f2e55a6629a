"""Makes a failing history smaller: leaves out steps, troubles, files, broken lines and points, greedily."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import msgspec

from tests.system.steps import File, History, Ingest, Step

_T = TypeVar("_T")


def shrink(history: History, fails: Callable[[History], bool], most: int) -> History:
    """The smallest history that was found to fail, after at most `most` runs.

    Args:
      fails: runs a history and says whether it fails in the same way.
    """
    runs = 0
    progress = True
    while progress:
        progress = False
        for smaller in _smaller(history):
            if runs == most:
                return history
            runs += 1
            if fails(smaller):
                history, progress = smaller, True
                break
    return history


def _smaller(history: History) -> Iterator[History]:
    """The history with something left out: large things first."""
    steps = history.steps
    for position in reversed(range(len(steps))):
        yield _with(history, steps[:position] + steps[position + 1 :])
    for position, step in enumerate(steps):
        for simpler in _simpler(step):
            yield _with(history, [*steps[:position], simpler, *steps[position + 1 :]])


def _with(history: History, steps: Sequence[Step]) -> History:
    return msgspec.structs.replace(history, steps=list(steps))


def _simpler(step: Step) -> Iterator[Step]:
    if getattr(step, "trouble", None) is not None:
        yield msgspec.structs.replace(step, trouble=None)
    if not isinstance(step, Ingest):
        return
    if len(step.files) > 1:
        for files in _shorter(step.files):
            yield msgspec.structs.replace(step, files=files)
    for position, file in enumerate(step.files):
        for simpler in _simpler_files(file):
            files = [*step.files[:position], simpler, *step.files[position + 1 :]]
            yield msgspec.structs.replace(step, files=files)


def _simpler_files(file: File) -> Iterator[File]:
    if file.broken:
        yield msgspec.structs.replace(file, broken=[])
    if file.suffix:
        yield msgspec.structs.replace(file, suffix="")
    if len(file.points) > 1:
        for points in _shorter(file.points):
            yield msgspec.structs.replace(file, points=points)


def _shorter(items: list[_T]) -> Iterator[list[_T]]:
    """The list without each of its halves, quarters … and single items."""
    size = len(items) // 2
    while size:
        for start in range(0, len(items), size):
            rest = items[:start] + items[start + size :]
            if rest:
                yield rest
        size //= 2
