"""The contract of a message format, and the registry by name.

A format turns the bytes of a block of a file, or of one message, into points in columns plus the
records it refuses. To add one: a module here with a `MessageFormat`, its line in `FORMATS`, its tests.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from schema.points import PointBatch, Rejected, Series


class Point(NamedTuple):
    """One point as the slow paths of the formats hand it on."""

    series: Series
    time_ms: int
    in_ms: bool
    value: int | float


@dataclasses.dataclass(frozen=True, slots=True)
class Message:
    """Bytes to parse, and what is known of them.

    Attributes:
      text: whole lines of a block of a file, or the payload of one message.
      arrival_ms: publish time of the message or modification time of the file, in ms.
      source: file path or subscription.
      offset: byte offset of `text` in the (decompressed) source.
    """

    text: bytes
    arrival_ms: int
    source: str = ""
    offset: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Parsed:
    """What a message held: its good points, and its refused parts."""

    batch: PointBatch
    rejected: Sequence[Rejected]


class MessageFormat(abc.ABC):
    """One wire format. Instances keep bounded caches and belong to one thread."""

    name: str
    example: str

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> MessageFormat:
        """A new instance with those of the options that are the format's own; here there are none.

        Raises:
          ValueError: a value makes no sense; the message names the option.
        """
        return cls()

    @abc.abstractmethod
    def parse(self, message: Message) -> Parsed:
        """Reads every record of a message; never raises for bad input, it is in `rejected`."""
