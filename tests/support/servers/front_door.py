"""A server that takes points and reads nothing, at a free port, and a Pub/Sub that holds its messages."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import httpx

from tests.support.pubsub_server import TOPIC, PubSubServer
from tests.support.servers.running_server import running
from timebeam.pipelines.serve.web_application import ServerLimits
from timebeam.pipelines.serve.writes.bodies import BodyParser
from timebeam.pipelines.serve.writes.front_door import FrontDoor, WriteLimits
from timebeam.pipelines.serve.writes.publisher import Publisher
from timebeam.transforms.query.budget import Budget

Door = tuple[httpx.Client, PubSubServer]

READ_LIMITS = ServerLimits(Budget(1000, 1000, 1000, 1000, 10.0), 1, 1, 1000)


@contextlib.contextmanager
def front_door(
    limits: WriteLimits | None = None,
    pubsub: PubSubServer | None = None,
    formats: dict[str, Any] | None = None,
    **options: Any,
) -> Iterator[Door]:
    """A client of the server, and its Pub/Sub; `formats` are options of formats, `options` of `FrontDoor`."""
    with (pubsub or PubSubServer()).running() as server:
        door = FrontDoor(Publisher(TOPIC), BodyParser(formats or {}), limits or WriteLimits(), **options)
        with running(None, READ_LIMITS, door) as client:
            yield client, server
