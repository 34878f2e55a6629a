"""A mapping that drops its least recently used entries: for bounded caches of names and series."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Generic, TypeVar

CACHED_BYTES = 4096
"""Series with longer names are not cached: there is a number of entries, and a line can be of a mebibyte."""

K = TypeVar("K")
V = TypeVar("V")


class LruCache(Generic[K, V]):
    """At most `size` entries; getting or setting one makes it the newest. Not thread-safe."""

    def __init__(self, size: int) -> None:
        if size < 1:
            raise ValueError(f"a cache needs at least one entry, not {size}")
        self._size = size
        self._entries: OrderedDict[K, V] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def full(self) -> bool:
        """Whether it may have dropped entries."""
        return len(self._entries) == self._size

    def get(self, key: K) -> V | None:
        """The value of a key, or None."""
        value = self._entries.get(key)
        if value is not None:
            self._entries.move_to_end(key)
        return value

    def get_all(self, keys: Sequence[K]) -> list[V | None]:
        """The value of each key, or None."""
        values = list(map(self._entries.get, keys))
        for key, value in zip(keys, values, strict=True):
            if value is not None:
                self._entries.move_to_end(key)
        return values

    def __setitem__(self, key: K, value: V) -> None:
        self._entries[key] = value
        self._entries.move_to_end(key)
        if len(self._entries) > self._size:
            self._entries.popitem(last=False)
