"""Lists of a bounded size, and the bounded cache."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timebeam.schema.bits.lru_cache import LruCache, batched


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


@given(st.lists(st.integers(0, 9)), st.integers(1, 5), st.integers(1, 30))
def test_a_list_ends_at_the_first_limit(items: list[int], most: int, most_weight: int) -> None:
    batches = list(batched(iter(items), most, lambda item: item, most_weight))
    assert [item for batch in batches for item in batch] == items
    for batch in batches:
        assert 1 <= len(batch) <= most
        assert sum(batch[:-1]) < most_weight
    for batch in batches[:-1]:
        assert len(batch) == most or sum(batch) >= most_weight


def test_no_item_is_taken_before_its_list_is_asked_for() -> None:
    items = iter(range(5))
    batches = batched(items, 2)
    assert next(batches) == [0, 1]
    assert next(items) == 2
    assert list(batches) == [[3, 4]]
