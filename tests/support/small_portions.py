"""Small portions and blocks of files; as a program, `timebeam` with them."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

import pytest

from timebeam.pipelines import cli
from timebeam.pipelines.jobs import portions
from timebeam.transforms.input import files, line_cutter, parse

POINTS, JOINED_POINTS, BLOCK_BYTES = 100, 40, 2000


@contextlib.contextmanager
def small_portions(points: int = POINTS) -> Iterator[None]:
    """Portions of about so many points; lines have at most `BLOCK_BYTES`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(portions, "PORTION_POINTS", points)
        patch.setattr(files, "BLOCK_BYTES", BLOCK_BYTES)
        patch.setattr(parse, "JOINED_POINTS", JOINED_POINTS)
        patch.setattr(line_cutter, "LINE_BYTES", BLOCK_BYTES)
        yield


if __name__ == "__main__":
    with small_portions():
        sys.exit(cli.main())
