"""DoFns that handle elements in lists."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.pvalue import TaggedOutput
from apache_beam.runners.direct import direct_runner
from apache_beam.testing.util import assert_that, equal_to
from hypothesis import given
from hypothesis import strategies as st

from timebeam.schema.bits.lru_cache import batched
from timebeam.transforms.flow.steps import BufferedDoFn


class _JoinFn(BufferedDoFn[str]):
    """Texts in; lists of them joined out, and the length of each to the output `lengths`."""

    def __init__(self, most: float, most_weight: float) -> None:
        self.most, self.most_weight = most, most_weight

    def weight(self, text: str) -> int:
        return len(text)

    def handle(self, texts: Sequence[str]) -> Iterable[Any]:
        yield "+".join(texts)
        yield TaggedOutput("lengths", len(texts))


def _bundle(fn: _JoinFn, texts: Iterable[str]) -> list[str]:
    fn.start_bundle()
    elements = [element for text in texts for element in fn.process(text)]
    elements += [
        TaggedOutput(element.tag, element.value.value) if isinstance(element, TaggedOutput) else element.value
        for element in fn.finish_bundle()
    ]
    return [element for element in elements if not isinstance(element, TaggedOutput)]


@given(st.lists(st.text("ab", max_size=4)), st.integers(1, 4), st.integers(1, 9))
def test_elements_are_handled_in_the_lists_of_batched(texts: list[str], most: int, most_weight: int) -> None:
    expected = ["+".join(batch) for batch in batched(texts, most, len, most_weight)]
    assert _bundle(_JoinFn(most, most_weight), texts) == expected


def test_a_failed_bundle_leaves_nothing() -> None:
    fn = _JoinFn(10, 100)
    fn.start_bundle()
    assert list(fn.process("a")) == []
    assert _bundle(fn, ["b"]) == ["b"]
    assert _bundle(fn, []) == []


@pytest.mark.parametrize("most", [2, 100])
def test_both_outputs_of_a_pipeline(most: int) -> None:
    with beam.Pipeline(direct_runner.BundleBasedDirectRunner()) as pipeline:
        texts = pipeline | beam.Create(["a"] * 5, reshuffle=False)
        joined = texts | beam.ParDo(_JoinFn(most, 100)).with_outputs("lengths", main="main")
        total = joined["lengths"] | beam.CombineGlobally(sum)
        characters = joined.main | beam.Map(lambda text: text.count("a")) | "Sum" >> beam.CombineGlobally(sum)
        assert_that(total, equal_to([5]))
        assert_that(characters, equal_to([5]), "characters")
