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


SECTIONS = {
    "Start": "start",
    "Concepts": "concepts",
    "Use": "use",
    "Operate": "operate",
    "Reference": "reference",
    "Specification": "spec",
    "Upgrade": "how-to",
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


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("source-read", link_into_repository)
    app.connect("source-read", add_navigation)
