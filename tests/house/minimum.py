"""Prints pip's constraints for the lowest versions that setup.py allows: `python -m tests.house.minimum`."""

from __future__ import annotations

import re
from pathlib import Path

REQUIREMENT = re.compile(r'^ *"([\w-]+)(?:\[[\w,]+\])?>=([\w.]+)', re.MULTILINE)


def constraints(setup: str) -> list[str]:
    """A line for each requirement that has a lowest version.

    Args:
      setup: the text of setup.py.
    """
    return sorted({f"{name}=={lowest}" for name, lowest in REQUIREMENT.findall(setup)})


if __name__ == "__main__":
    print("\n".join(constraints(Path("setup.py").read_text(encoding="utf-8"))))
