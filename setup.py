"""Builds the distribution that pyproject.toml declares: for Dataflow's `--setup_file`, and for releases.

Only what depends on PROJECT_URL, the repository of a release, is declared here.
"""

import os
import re
from pathlib import Path

ROOT = Path(__file__).parent
PAGES = {"Source": "", "Documentation": "/blob/main/docs/index.md", "Changelog": "/blob/main/CHANGELOG.md"}


def project_urls() -> dict[str, str]:
    """The pages of the repository."""
    url = os.environ.get("PROJECT_URL", "").rstrip("/")
    return {name: url + path for name, path in PAGES.items()} if url else {}


def long_description() -> str:
    """The README; its relative links lead into the repository."""
    text = ROOT.joinpath("README.md").read_text(encoding="utf-8")
    url = os.environ.get("PROJECT_URL", "").rstrip("/")
    return re.sub(r"\]\((?!\w+:|#)", f"]({url}/blob/main/", text) if url else text


if __name__ == "__main__":
    from setuptools import setup

    setup(
        long_description=long_description(),
        long_description_content_type="text/markdown",
        project_urls=project_urls(),
    )
