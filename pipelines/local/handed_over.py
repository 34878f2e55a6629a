"""What the sources of local graphs read: the runner works in the process that hands it over."""

from __future__ import annotations

from collections.abc import Iterable

from timebeam.schema.formats import Message
from timebeam.transforms.flow.steps import RejectedOutput

messages: dict[int, Iterable[Message | RejectedOutput]] = {}
"""The messages of each `TakeBatch`, by its number; each run replaces them."""
