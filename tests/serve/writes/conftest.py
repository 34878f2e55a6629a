"""A server that takes points, for all tests of a module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.servers.front_door import Door, front_door


@pytest.fixture(scope="module")
def running_door() -> Iterator[Door]:
    with front_door() as door:
        yield door


@pytest.fixture
def door(running_door: Door) -> Door:
    """The server, and a Pub/Sub without messages."""
    running_door[1].published.clear()
    return running_door
