"""A mapping that forgets what was used longest ago: the bounded caches of names, texts and series."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class LruCache(Generic[K, V]):
    """At most `size` entries; both getting and setting one make it the newest. Not for threads."""

    def __init__(self, size: int) -> None:
        if size < 1:
            raise ValueError(f"a cache needs room for one entry at least, not {size}")
        self._size = size
        self._entries: OrderedDict[K, V] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def full(self) -> bool:
        """Whether it may have forgotten something."""
        return len(self._entries) == self._size

    def get(self, key: K) -> V | None:
        """The value of a key, or None."""
        value = self._entries.get(key)
        if value is not None:
            self._entries.move_to_end(key)
        return value

    def __setitem__(self, key: K, value: V) -> None:
        self._entries[key] = value
        self._entries.move_to_end(key)
        if len(self._entries) > self._size:
            self._entries.popitem(last=False)
