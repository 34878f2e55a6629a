"""Messages into points: any message format, with its refusals on the side."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import apache_beam as beam

from schema.messages import Message, MessageFormat, message_format
from schema.points import PointBatch
from transforms import metrics
from transforms.rejected import RejectedOutput, refuse


class ParseFn(beam.DoFn):
    """`Message` in; `PointBatch` out, refused records to the output `REJECTED`."""

    def __init__(self, format_name: str, options: Mapping[str, Any]) -> None:
        """See `message_format` for the arguments."""
        self._format_name, self._options = format_name, options
        self._format: MessageFormat | None = None

    def setup(self) -> None:
        """Makes the format, whose caches live as long as the worker."""
        self._format = message_format(self._format_name, self._options)

    def process(self, message: Message) -> Iterable[PointBatch | RejectedOutput]:
        """See the class."""
        assert self._format is not None
        parsed = self._format.parse(message)
        metrics.count("points_read", len(parsed.batch) + len(parsed.rejected))
        for rejected in parsed.rejected:
            yield refuse(dataclasses.replace(rejected, arrival_ms=message.arrival_ms))
        if len(parsed.batch):
            yield parsed.batch
