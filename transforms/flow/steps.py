"""What steps share: the five types of elements on the way of a point and their coders, rejections, lists.

    files, Pub/Sub                                        Bigtable
          │                                                   ▲
          │ Message        bytes, source, arrival; of a       │ EncodedRow   mutations of a row
          │                stream lists of them               │
          ▼                                                   │
        parse                                               pack
          │ PointBatch     columns of points                  ▲
          ▼                                                   │ Encoded      all fragments of its rows
        assign, index                                       group
          │ PointBatch     with the keys of its series        ▲
          ▼                                                   │
        encode ───────────────────────────────────────────────┘
                           Encoded: a fragment for each row of a batch
    any step ──► Rejected  what is rejected, with its bytes, for the dead letters

Elements are pickled, with an estimate of the size. Beam samples the size of elements. By default it pickles
Python objects for that, which took a tenth of a run with blocks of megabytes.
"""

from __future__ import annotations

import ctypes
import functools
import math
import pickle
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Generic, Literal, TypeVar

import apache_beam as beam
from apache_beam.coders import Coder, registry
from apache_beam.pvalue import TaggedOutput
from apache_beam.transforms.window import GlobalWindows

from timebeam.schema.core.point_fragments import Encoded
from timebeam.schema.core.points import PointBatch
from timebeam.schema.core.rejections import Rejected
from timebeam.schema.core.rows import EncodedRow
from timebeam.schema.formats import Message

OVERHEAD = 100  # about the bytes of an element beside its content
_POINT = 40  # bytes of a point in the columns of a batch
_FRAGMENT = 1000  # about the bytes of a fragment of a row


class RecordCoder(Coder):
    """Pickles elements; a subclass for each type estimates their size in bytes."""

    def encode(self, value: Any) -> bytes:
        """The pickled element."""
        return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)

    def decode(self, encoded: bytes) -> Any:
        """The element."""
        return pickle.loads(encoded)

    def is_deterministic(self) -> bool:
        """False: these elements are never keys."""
        return False


class _MessageCoder(RecordCoder):
    def estimate_size(self, value: Message) -> int:
        return len(value.text) + OVERHEAD


class _BatchCoder(RecordCoder):
    def estimate_size(self, value: PointBatch) -> int:
        return len(value) * _POINT + OVERHEAD


class _EncodedCoder(RecordCoder):
    def estimate_size(self, value: Encoded) -> int:
        return len(value.fragments) * _FRAGMENT + OVERHEAD


class _EncodedRowCoder(RecordCoder):
    def estimate_size(self, value: EncodedRow) -> int:
        return len(value.mutations) + OVERHEAD


class _RejectedCoder(RecordCoder):
    def estimate_size(self, value: Rejected) -> int:
        return len(value.payload) + OVERHEAD


ELEMENTS: dict[type, type[RecordCoder]] = {
    Message: _MessageCoder,
    PointBatch: _BatchCoder,
    Encoded: _EncodedCoder,
    EncodedRow: _EncodedRowCoder,
    Rejected: _RejectedCoder,
}
"""The types, with their coders."""


def register_coders() -> None:
    """Registers the coders with Beam; call it before a graph is built."""
    for element, coder in ELEMENTS.items():
        registry.register_coder(element, coder)


Element = TypeVar("Element")

REJECTED: Final = "rejected"

RejectedOutput = TaggedOutput[Literal["rejected"], Rejected]


def reject(rejected: Rejected) -> RejectedOutput:
    """A rejection as an element of the output `REJECTED`."""
    return TaggedOutput(REJECTED, rejected)


def outputs(elements: Iterable[Element | Rejected]) -> Iterator[Element | RejectedOutput]:
    """Elements, and rejections as elements of the output `REJECTED`."""
    for element in elements:
        yield reject(element) if isinstance(element, Rejected) else element


def rejecting(fn: beam.DoFn | Callable[..., Iterable[Any]], output_type: Any, *arguments: Any) -> Any:
    """A step with the outputs `main`, of the given type, and `REJECTED`.

    Args:
      fn: a DoFn, or a function of an element.
      arguments: further arguments of the function, or side inputs.
    """
    make = beam.ParDo if isinstance(fn, beam.DoFn) else beam.FlatMap
    return make(fn, *arguments).with_output_types(output_type).with_outputs(REJECTED, main="main")


_IN_GLOBAL_WINDOW = GlobalWindows.windowed_value(None)  # making a window for each element takes 1 µs


def windowed(elements: Iterable[Any]) -> Iterator[Any]:
    """Elements, also of other outputs, as windowed values, as `finish_bundle` must yield them.

    In the global window: of steps that have their input there. `timebeam.transforms.flow.in_windows` gathers
    elements of any windowing.
    """
    for element in elements:
        if isinstance(element, TaggedOutput):
            yield TaggedOutput(element.tag, _IN_GLOBAL_WINDOW.with_value(element.value))
        else:
            yield _IN_GLOBAL_WINDOW.with_value(element)


class BufferedDoFn(beam.DoFn, Generic[Element]):
    """Elements in; out comes what a subclass makes of lists of them.

    A list ends with the element that brings it to `most` elements or `most_weight`, and the last one with
    the bundle: all elements are handled before the bundle counts as done. Those of a bundle that failed are
    dropped, since Beam repeats it. The input must be in the global window.

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


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h of glibc
_MAPPED_BYTES, _KEPT_BYTES = 4 << 20, 32 << 20


@functools.cache
def give_back_memory() -> None:
    """Makes this process return freed memory: blocks of 4 MiB or more, and all that is above 32 MiB.

    By default glibc raises the first limit to 32 MB when a block of that size is freed, and then keeps up to
    twice as much in each arena (about one per thread). Numpy's arrays are such blocks, so a worker would hold
    several times the memory that it uses. If the limits were a megabyte, the pages of most smaller
    arrays would be given back and asked for again, which takes a third of the time of decoding. Without glibc
    (musl, macOS) this does nothing.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _MAPPED_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
