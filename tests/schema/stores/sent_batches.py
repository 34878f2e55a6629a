"""Batches of points as several sources send them, and which point of each instant must win."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Hashable, Sequence
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from hypothesis import strategies as st

from timebeam.schema.core.rejections import Origins

Put = TypeVar("Put")
"""One point of a batch, in the form of a layout's test."""

Slot = TypeVar("Slot", bound=Hashable)


class Sent(NamedTuple, Generic[Put]):
    """One batch: its points with their arrivals, and its place in its source."""

    puts: Sequence[Put]
    arrivals: Sequence[int]
    offset: int
    source: str = "f"

    @property
    def origins(self) -> Origins:
        """Origins of all points at the start of the batch."""
        n = len(self.puts)
        return Origins(b"", np.zeros(n, np.int64), np.zeros(n, np.int64), self.source, self.offset)


def newest(batches: Sequence[Sent[Put]], slot_of: Callable[[Put], Slot]) -> dict[Slot, tuple[int, Put]]:
    """(arrival, point) by slot: newest arrival, then source, offset and place in the batch."""
    best: dict[Slot, tuple[tuple[int, ...], Put]] = {}
    for sent in batches:
        for place, (put, arrival) in enumerate(zip(sent.puts, sent.arrivals, strict=True)):
            rank = (arrival, zlib.crc32(sent.source.encode()), sent.offset, place)
            slot = slot_of(put)
            if slot not in best or rank > best[slot][0]:
                best[slot] = rank, put
    return {slot: (rank[0], put) for slot, (rank, put) in best.items()}


@st.composite
def sent_batches(draw: st.DrawFn, puts: st.SearchStrategy[Put]) -> list[Sent[Put]]:
    """Batches of two sources, each at its own offset; arrivals may be equal, also within a batch."""
    batches = []
    for offset in draw(st.lists(st.integers(0, 1 << 40), min_size=1, max_size=4, unique=True)):
        batch = draw(st.lists(puts, min_size=1, max_size=12))
        arrival = draw(st.integers(1, 3))
        spread = draw(st.booleans())
        arrivals = [draw(st.integers(1, 3)) if spread else arrival for _ in batch]
        batches.append(Sent(batch, arrivals, offset, draw(st.sampled_from("fg"))))
    return batches
