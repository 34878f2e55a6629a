"""Prints the lowest versions that pyproject.toml allows, for pip: `python -m tests.house.minimum`."""

from __future__ import annotations

import itertools
import re
import tomllib
from pathlib import Path

REQUIREMENT = re.compile(r"([\w-]+)(?:\[[\w,]+\])?>=([\w.]+)")


def constraints(project: str) -> list[str]:
    """A line for each requirement that has a lowest version.

    Args:
      project: the text of pyproject.toml.
    """
    declared = tomllib.loads(project)["project"]
    extras = declared["optional-dependencies"].values()
    requirements = itertools.chain(declared["dependencies"], *extras)
    found = filter(None, map(REQUIREMENT.match, requirements))
    return sorted({f"{name}=={lowest}" for name, lowest in (match.groups() for match in found)})


if __name__ == "__main__":
    print("\n".join(constraints(Path("pyproject.toml").read_text(encoding="utf-8"))))
