"""Small portions and blocks of files."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from timebeam.pipelines.jobs import run_input
from timebeam.transforms.input import cut_lines, files, parse

POINTS, JOINED_POINTS, BLOCK_BYTES = 100, 40, 2000
_REST = contextlib.ExitStack()


@contextlib.contextmanager
def small_portions(points: int = POINTS) -> Iterator[None]:
    """Portions of about so many points; lines have at most `BLOCK_BYTES`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_input, "PORTION_POINTS", points)
        patch.setattr(files, "BLOCK_BYTES", BLOCK_BYTES)
        patch.setattr(parse, "JOINED_POINTS", JOINED_POINTS)
        patch.setattr(cut_lines, "LINE_BYTES", BLOCK_BYTES)
        yield


def make_portions_small() -> None:
    """`small_portions`, for the rest of this process."""
    _REST.enter_context(small_portions())
