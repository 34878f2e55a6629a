"""Sphinx builds the site from the Markdown files of this folder: `make docs`."""

from __future__ import annotations

import os
import re
from pathlib import Path

from sphinx.application import Sphinx

DOCS = Path(__file__).resolve().parent

project = "timebeam"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
html_title = "timebeam"
myst_heading_anchors = 4
napoleon_use_ivar = True
autodoc_member_order = "bysource"


SECTIONS = {
    "Start": "start",
    "Concepts": "concepts",
    "Use": "use",
    "Operate": "operate",
    "Reference": "reference",
    "Specification": "spec",
}


def link_into_repository(app: Sphinx, name: str, source: list[str]) -> None:
    """Rewrites links to files outside of docs/: into the repository of PROJECT_URL, else to plain text."""
    url = os.environ.get("PROJECT_URL", "").rstrip("/")
    page = DOCS / f"{name}.md"

    def replace(link: re.Match[str]) -> str:
        target = (page.parent / link[2]).resolve()
        if "://" in link[2] or not link[2] or target.is_relative_to(DOCS):
            return link[0]
        path = target.relative_to(DOCS.parent)
        return f"[{link[1]}]({url}/blob/main/{path}{link[3] or ''})" if url else link[1]

    source[0] = re.sub(r"\[([^]\n]*)\]\(([^)#\s]*)(#[^)\s]*)?\)", replace, source[0])


def add_navigation(app: Sphinx, name: str, source: list[str]) -> None:
    """Adds the folders as a navigation tree to the index page, where readers of plain Markdown need none."""
    if name == "index":
        for caption, folder in SECTIONS.items():
            source[0] += f"\n```{{toctree}}\n:hidden:\n:glob:\n:caption: {caption}\n\n{folder}/*\n```\n"


def docstring_as_text(app: Sphinx, what: str, name: str, of: object, options: object, lines: list[str]):
    """Makes code of what docstrings have in backticks, and text of `NAME_...`, which would be a link."""
    for number, line in enumerate(lines):
        code = re.sub(r"(?<!`)`([^`]+)`(?!`)", r"``\1``", line)
        lines[number] = re.sub(r"\b([A-Z]+)_(?=\.\.\.)", r"\1\\_", code)


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("autodoc-process-docstring", docstring_as_text)
    app.connect("source-read", link_into_repository)
    app.connect("source-read", add_navigation)
