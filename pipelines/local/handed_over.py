"""What the sources of local graphs read: the runner works in the process that hands it over."""

from __future__ import annotations

from collections.abc import Sequence

from timebeam.schema.messages import Message

messages: dict[int, Sequence[Message]] = {}
"""The messages of each `TakeBatch`, by its number; each run replaces them."""
