"""/ping and /health of InfluxDB, which its clients ask before they write.

Sources: InfluxDB's API of versions 1 (/ping) and 1.8 and 2 (/health). The answers do not depend on Pub/Sub: a
client that waits for a healthy server would send nothing that shows that Pub/Sub answers again.
"""

from __future__ import annotations

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response

VERSION = "1.8.10"
"""The version of InfluxDB that clients are told: one with /write, /api/v2/write and /health."""

_HEADERS = {"X-Influxdb-Version": VERSION, "X-Influxdb-Build": "timebeam"}


async def ping(http: HttpRequest) -> Response:
    """204; with `verbose=true` the version."""
    if http.query_params.get("verbose", "false") in ("", "0", "false"):
        return Response(status_code=204, headers=_HEADERS)
    return JSONResponse({"version": VERSION}, headers=_HEADERS)


async def health(_: HttpRequest) -> Response:
    """The status `pass`."""
    message = "ready for writes"
    body = {"name": "influxdb", "message": message, "status": "pass", "checks": [], "version": VERSION}
    return JSONResponse(body, headers=_HEADERS)


HEALTH = {"/ping": ping, "/health": health}
"""The handler of each path."""
