"""The bounded cache."""

from __future__ import annotations

import pytest

from timebeam.schema.bits.lru import LruCache


def test_the_entry_used_longest_ago_is_forgotten() -> None:
    cache: LruCache[str, int] = LruCache(2)
    cache["a"] = 1
    assert not cache.full
    cache["b"] = 2
    assert cache.full
    assert cache.get("a") == 1
    cache["c"] = 3
    assert [cache.get(key) for key in "abc"] == [1, None, 3]
    assert len(cache) == 2


def test_setting_an_entry_again_makes_it_the_newest() -> None:
    cache: LruCache[str, int] = LruCache(2)
    for key, value in (("a", 1), ("b", 2), ("a", 3), ("c", 4)):
        cache[key] = value
    assert [cache.get(key) for key in "abc"] == [3, None, 4]


def test_it_needs_room() -> None:
    with pytest.raises(ValueError, match="at least one entry"):
        LruCache(0)
