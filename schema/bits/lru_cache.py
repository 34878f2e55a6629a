"""Bounded memory: lists of a bounded size; mappings that drop the least recently used, or old, entries."""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Generic, TypeVar

CACHED_BYTES = 4096
"""Series with longer names are not cached: there is a number of entries, and a line can be of a mebibyte."""

K = TypeVar("K")
V = TypeVar("V")
Item = TypeVar("Item")


def batched(
    items: Iterable[Item],
    most: float,
    weight: Callable[[Item], int] | None = None,
    most_weight: float = math.inf,
) -> Iterator[list[Item]]:
    """Items in lists that are handled together, in order; no list is empty.

    >>> list(batched(["a", "bcd", "e", "f", "g"], most=3, weight=len, most_weight=4))
    [['a', 'bcd'], ['e', 'f', 'g']]

    Args:
      most: a list ends with so many items.
      weight: of an item, such as its bytes.
      most_weight: a list ends with the item that brings it to so much.
    """
    batch: list[Item] = []
    total = 0
    for item in items:
        batch.append(item)
        if weight is not None:
            total += weight(item)
        if len(batch) >= most or total >= most_weight:
            yield batch
            batch, total = [], 0
    if batch:
        yield batch


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


class BoundedDict(dict[K, V]):
    """At most `most` entries; a further one drops all others. As quick to read as a dict."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def __setitem__(self, key: K, value: V) -> None:
        if len(self) >= self._most:
            self.clear()
        super().__setitem__(key, value)


class TimedCache(Generic[K, V]):
    """Values by key, each for some seconds; if there are more than `most`, all are dropped."""

    def __init__(self, most: int, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._clock = seconds, clock
        self._values: BoundedDict[K, tuple[float, V]] = BoundedDict(most)

    def get(self, key: K) -> V | None:
        """The value of a key; None if there is none, or only an old one."""
        made = self._values.get(key)
        return None if made is None or self._clock() - made[0] >= self._seconds else made[1]

    def __setitem__(self, key: K, value: V) -> None:
        self._values[key] = self._clock(), value
