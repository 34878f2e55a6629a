"""The server in a thread of its own, at a free port."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

import httpx
import uvicorn

from timebeam.pipelines.serve.api import Api
from timebeam.pipelines.serve.connections import TimedProtocol
from timebeam.pipelines.serve.web_application import ServerLimits, application
from timebeam.pipelines.serve.writes.front_door import FrontDoor

_SECONDS = 60


@contextlib.contextmanager
def running(api: Api | None, limits: ServerLimits, writes: FrontDoor | None = None) -> Iterator[httpx.Client]:
    """A client of a server that runs meanwhile."""
    app = application(api, limits, writes)
    config = uvicorn.Config(app, port=0, http=TimedProtocol, log_level="error", access_log=False)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    host, port = server.servers[0].sockets[0].getsockname()[:2]
    try:
        with httpx.Client(base_url=f"http://{host}:{port}", timeout=_SECONDS) as client:
            yield client
    finally:
        server.should_exit = True
        thread.join()
