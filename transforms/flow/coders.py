"""Coders for the records between steps: pickle, with an estimate of the size.

Beam samples the size of elements. By default it pickles Python objects for that, which took a tenth of a run
with blocks of megabytes.
"""

from __future__ import annotations

import pickle
from typing import Any

from apache_beam.coders import Coder, registry

from timebeam.schema.core.points import PointBatch
from timebeam.schema.core.rejections import Rejected
from timebeam.schema.core.rows import EncodedRow, Row
from timebeam.schema.core.writing import Encoded
from timebeam.schema.formats import Message
from timebeam.transforms.ingest.assign import KeyedBatch

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


class _KeyedBatchCoder(RecordCoder):
    def estimate_size(self, value: KeyedBatch) -> int:
        return len(value.batch) * _POINT + OVERHEAD


class _EncodedCoder(RecordCoder):
    def estimate_size(self, value: Encoded) -> int:
        return len(value.fragments) * _FRAGMENT + OVERHEAD


class _RowCoder(RecordCoder):
    def estimate_size(self, value: Row | EncodedRow) -> int:
        if isinstance(value, EncodedRow):
            return len(value.mutations) + OVERHEAD
        return sum(len(cell.qualifier) + len(cell.value) for cell in value.cells) + OVERHEAD


class _RejectedCoder(RecordCoder):
    def estimate_size(self, value: Rejected) -> int:
        return len(value.payload) + OVERHEAD


def register() -> None:
    """Registers the coders with Beam; call it before a graph is built."""
    registry.register_coder(Message, _MessageCoder)
    registry.register_coder(PointBatch, _BatchCoder)
    registry.register_coder(KeyedBatch, _KeyedBatchCoder)
    registry.register_coder(Encoded, _EncodedCoder)
    registry.register_coder(Row, _RowCoder)
    registry.register_coder(EncodedRow, _RowCoder)
    registry.register_coder(Rejected, _RejectedCoder)
