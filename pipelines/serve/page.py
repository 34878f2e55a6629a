"""The files of the page at /."""

from __future__ import annotations

import asyncio
from pathlib import Path

from starlette.requests import Request as HttpRequest
from starlette.responses import Response as HttpResponse


def _plotly() -> bytes:
    """Plotly's own file for browsers, out of its Python package."""
    from plotly.offline import get_plotlyjs

    script: str = get_plotlyjs()
    return script.encode()


_FOLDER = Path(__file__).parent
PAGE = {
    "/": ("text/html", lambda: (_FOLDER / "page.html").read_bytes()),
    "/page.js": ("text/javascript", lambda: (_FOLDER / "page.js").read_bytes()),
    "/plotly.js": ("text/javascript", _plotly),
}
"""The files of the page, by path: their types, and what reads them."""

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'unsafe-inline'; connect-src 'self'; "
    "img-src data: blob:; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)


async def show_page(http: HttpRequest) -> HttpResponse:
    """A file of the page; it loads nothing from elsewhere."""
    media_type, read = PAGE[http.url.path]
    headers = {"Content-Security-Policy": _POLICY, "Cache-Control": "max-age=3600"}
    return HttpResponse(await asyncio.to_thread(read), headers=headers, media_type=media_type)
