"""What passes between the steps on the way of a point: five types, and their coders.

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

import pickle
from typing import Any

from apache_beam.coders import Coder, registry

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


def register() -> None:
    """Registers the coders with Beam; call it before a graph is built."""
    for element, coder in ELEMENTS.items():
        registry.register_coder(element, coder)
