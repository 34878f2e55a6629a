"""The frame of a self-contained HTML page: it loads nothing, and follows the reader's light or dark mode."""

from __future__ import annotations

import html
import string


def html_page(title: str, style: str, body: str) -> str:
    """A page with a heading.

    Args:
      title: plain text.
      style: CSS; it can use the colours `--page`, `--ink`, `--soft` and `--line`.
      body: HTML that follows the heading; its scripts are part of it.
    """
    return _PAGE.substitute(title=html.escape(title), style=style, body=body)


_PAGE = string.Template("""\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; \
script-src 'unsafe-inline'; img-src data: blob:">
<title>$title</title>
<style>
:root { color-scheme: light dark; --page: #fff; --ink: #1d2125; --soft: #5c6670; --line: #d9dee3; }
@media (prefers-color-scheme: dark) {
  :root { --page: #16191d; --ink: #e3e6e9; --soft: #9aa5b0; --line: #343b43; }
}
body { margin: 0 auto; padding: 1.2rem 1.6rem 4rem; max-width: 110rem; background: var(--page);
  color: var(--ink); font: 14px/1.5 system-ui, sans-serif; }
h1 { margin: 0 0 .6rem; font-size: 1.3rem; overflow-wrap: anywhere; }
p { margin: 0 0 .6rem; color: var(--soft); overflow-wrap: anywhere; }
$style</style>
</head>
<body>
<h1>$title</h1>
$body
</body>
</html>
""")
