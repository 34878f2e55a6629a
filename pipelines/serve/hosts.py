"""Which names of the server clients may use, and which pages may write: browsers run scripts of any site.

A name of another site can resolve to the loopback address; then scripts of that site could read the answers.
Scripts of any page may send a POST, though not see its answer: browsers say in Origin which page it is.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from timebeam.pipelines.serve.writes.protocols import PROTOCOLS
from timebeam.schema.bits.reasons import short
from timebeam.schema.stores.opentsdb.http.api_request import ApiError

_LOOPBACK = ("localhost", "127.0.0.1", "::1")


def hosts_of(bind: str, allowed: Sequence[str]) -> frozenset[str] | None:
    """The names in `Host` that are answered at an address; None for all, on other than loopback addresses."""
    try:
        is_loopback = bind == "localhost" or ipaddress.ip_address(bind).is_loopback
    except ValueError:
        is_loopback = False
    return frozenset((*_LOOPBACK, bind, *map(str.lower, allowed))) if is_loopback or allowed else None


class KnownHosts:
    """ASGI middleware: 403 for requests to other names, and for writes from pages of other origins."""

    def __init__(self, app: ASGIApp, hosts: frozenset[str] | None, allowed: Sequence[str]) -> None:
        """
        Args:
          hosts: see `hosts_of`.
          allowed: names whose pages may write.
        """
        self._app, self._hosts, self._allowed = app, hosts, frozenset(map(str.lower, allowed))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        why = self._refusal(scope) if scope["type"] == "http" else None
        if why is None:
            await self._app(scope, receive, send)
        else:
            await JSONResponse(ApiError(why, 403).body(), 403)(scope, receive, send)

    def _refusal(self, scope: Scope) -> str | None:
        """Why a request is not answered; None if it is."""
        headers = Headers(scope=scope)
        host, origin = headers.get("host", "").lower(), headers.get("origin")
        if host and self._hosts is not None and _name(host) not in self._hosts:
            name = short(_name(host) or host)
            return f"Host {name!r} is not allowed here: start the server with --allowed_host {name}"
        if origin is None or scope["path"] not in PROTOCOLS:
            return None
        page = origin.lower().rpartition("://")[2]
        if page == host or _name(page) in self._allowed:
            return None
        return f"Origin {short(origin)!r} may not write: start the server with --allowed_host and its name"


def _name(host: str) -> str | None:
    """The name, or address, without the port; None if there is none."""
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None
