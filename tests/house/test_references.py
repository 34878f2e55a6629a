"""Docstrings refer in backticks to names that exist in the tree, its strings or its documents."""

from __future__ import annotations

from pathlib import Path

from tests.house.figures import documents, modules
from tests.house.references import unresolved

ROOT = Path(__file__).resolve().parents[2]


def test_references_of_docstrings_lead_somewhere() -> None:
    assert unresolved(modules(ROOT), documents(ROOT)) == []
