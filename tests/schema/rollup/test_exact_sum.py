"""Sums against Python's integers, math.fsum and fractions; independence of order."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from timebeam.schema.rollup.exact_sum import Sums, concatenate, sums_of_floats, sums_of_integers

INT64 = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    st.integers(-100, 100),
    st.sampled_from([-(2**63), 2**63 - 1, 2**53 + 1, 2**28, -(2**28), 2**28 - 1, 2**56, 0]),
)
ANY_FLOAT = st.floats(allow_nan=False, allow_infinity=False)
CLOSE_FLOAT = st.one_of(st.floats(1.0, 2.0**31), st.floats(-(2.0**31), -1.0), st.just(0.0), st.just(-0.0))


def of_floats(values: list[float]) -> Sums:
    array = np.array(values)
    return sums_of_floats(array, np.array([np.abs(array).max()]), np.array([0]))


def of_integers(values: list[int]) -> Sums:
    return sums_of_integers(np.array(values, np.int64), np.array([0]))


def the_float(sums: Sums) -> float:
    with np.errstate(over="ignore"):
        (found,) = sums.floats().tolist()
    return found


@given(st.lists(CLOSE_FLOAT, min_size=1, max_size=40))
def test_floats_of_like_size_are_summed_exactly_and_rounded_once(values):
    assert the_float(of_floats(values)) == math.fsum(values)


@given(st.lists(ANY_FLOAT, min_size=1, max_size=40))
def test_floats_of_any_size_are_summed_within_what_is_dropped(values):
    exact = sum(map(Fraction, values))
    largest = Fraction(max(map(abs, values)))
    found = the_float(of_floats(values))
    if math.isinf(found):
        assert abs(exact) >= Fraction(2) ** 1024 - Fraction(2) ** 970  # what rounds to more than any float
        assert (found > 0) == (exact > 0)
    else:
        half_ulp = Fraction(math.ulp(found)) / 2
        assert abs(Fraction(found) - exact) <= half_ulp + len(values) * largest / 2**84


@given(st.lists(INT64, min_size=1, max_size=40))
def test_integers_are_summed_exactly(values):
    sums = of_integers(values)
    whole, fits = sums.integers()
    exact = sum(values)
    assert fits.tolist() == [-(2**63) <= exact < 2**63]
    assert whole.tolist() == ([exact] if fits[0] else [0])
    assert the_float(sums) == float(exact)


@given(
    st.lists(st.one_of(ANY_FLOAT, INT64), min_size=1, max_size=30),
    st.randoms(use_true_random=False),
    st.integers(1, 5),
)
def test_any_split_and_order_gives_the_same_sum(values, chance, parts):
    def one(values):
        kinds = [[v for v in values if isinstance(v, kind)] for kind in (float, int)]
        found = [make(kind) for make, kind in zip((of_floats, of_integers), kinds, strict=True) if kind]
        return concatenate(found).added(np.array([0]))

    together = one(values)
    shuffled = chance.sample(values, len(values))
    cuts = sorted(chance.randrange(len(values) + 1) for _ in range(parts - 1))
    pieces = [shuffled[a:b] for a, b in zip([0, *cuts], [*cuts, len(values)], strict=True)]
    merged = concatenate([one(piece) for piece in pieces if piece]).added(np.array([0]))
    assert merged.tops.tolist() == together.tops.tolist()
    assert merged.digits.tolist() == together.digits.tolist()


def test_what_plain_addition_loses_is_kept():
    assert the_float(of_floats([1e16, 1.0, -1e16])) == 1.0
    assert the_float(of_floats([0.1] * 10)) == 1.0
    assert the_float(of_floats([1e308, 1e308, -1e308])) == 1e308
    assert the_float(of_floats([5e-324, 5e-324, -2.5e-323])) == -1.5e-323
    assert math.copysign(1, the_float(of_floats([-0.0, -0.0]))) == 1


def test_halves_are_rounded_to_even():
    assert the_float(of_floats([2.0**53, 1.0])) == 2.0**53
    assert the_float(of_floats([2.0**53, 3.0])) == 2.0**53 + 4
    assert the_float(of_floats([2.0**53, 1.0, 2.0**-20])) == 2.0**53 + 2


def test_groups_of_very_different_size_do_not_touch_each_other():
    values = np.array([1e300, -1e300, 1e-300, 2e-300, 0.0, 7.5])
    sums = sums_of_floats(values, np.array([1e300, 2e-300, 0.0, 7.5]), np.array([0, 2, 4, 5]))
    assert sums.floats().tolist() == [0.0, math.fsum([1e-300, 2e-300]), 0.0, 7.5]
