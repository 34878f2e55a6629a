"""DoFns that handle the elements of a bundle together, in lists of a bounded size."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any, Generic, TypeVar

import apache_beam as beam
from apache_beam.pvalue import TaggedOutput
from apache_beam.transforms.window import GlobalWindows

Element = TypeVar("Element")

_IN_GLOBAL_WINDOW = GlobalWindows.windowed_value(None)  # making a window for each element takes 1 µs


def windowed(elements: Iterable[Any]) -> Iterator[Any]:
    """Elements, also of other outputs, as windowed values, as `finish_bundle` must yield them."""
    for element in elements:
        if isinstance(element, TaggedOutput):
            yield TaggedOutput(element.tag, _IN_GLOBAL_WINDOW.with_value(element.value))
        else:
            yield _IN_GLOBAL_WINDOW.with_value(element)


class BufferedDoFn(beam.DoFn, Generic[Element]):
    """Elements in; out comes what a subclass makes of lists of them.

    A list ends with the element that brings it to `most` elements or `most_weight`, and the last one with
    the bundle: all elements are handled before the bundle counts as done. Those of a bundle that failed are
    dropped, since Beam repeats it.

    A subclass has `handle`, and `weight` if elements differ in size. One whose `process` takes more than the
    element, or leaves some out, calls `add`.

    Attributes:
      most: of elements in a list.
      most_weight: of a list.
    """

    most: float = math.inf
    most_weight: float = math.inf

    def handle(self, elements: list[Element]) -> Iterable[Any]:
        """What comes out for a list of elements, which is not empty."""
        raise NotImplementedError

    def weight(self, element: Element) -> int:
        """What an element adds to the list, such as its bytes."""
        return 0

    def start_bundle(self) -> None:
        """Starts with an empty list."""
        self._elements: list[Element] = []
        self._weight = 0

    def process(self, element: Any) -> Iterable[Any]:
        """Adds an element; what comes out if the list ends with it."""
        self._elements.append(element)
        self._weight += self.weight(element)
        is_full = len(self._elements) >= self.most or self._weight >= self.most_weight
        return self._handled() if is_full else ()

    add = process  # a call less for each element of those that have no `process` of their own

    def finish_bundle(self) -> Iterator[Any]:
        """What comes out for the last list."""
        return windowed(self._handled())

    def _handled(self) -> Iterable[Any]:
        elements, self._elements, self._weight = self._elements, [], 0
        return self.handle(elements) if elements else ()
