"""Avro object containers cut into messages: containers of whole blocks, decompressed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from timebeam.schema.messages import Message
from timebeam.schema.messages.avro.codecs import EarlyEndError
from timebeam.schema.messages.avro.container import ContainerCutter
from timebeam.transforms.input.decompress import DamagedError, TruncatedError


class AvroCutter:
    """Cuts the bytes of one file; see `ContainerCutter`."""

    def __init__(self, path: str, modified_ms: int, size: int) -> None:
        """A message is complete when its text has `size` bytes."""
        self._path, self._modified_ms = path, modified_ms
        self._cutter = ContainerCutter(size)

    @property
    def rest(self) -> bytes:
        """The pending bytes."""
        return self._cutter.rest

    @property
    def offset(self) -> int:
        """Where `rest` begins in the file."""
        return self._cutter.offset

    def add(self, data: bytes) -> Iterator[Message]:
        """The messages that are complete with `data`.

        Raises:
          DamagedError: the container is damaged; all blocks before have been yielded.
        """
        yield from self._messages(self._cutter.add(data))

    def settle(self) -> Iterator[Message]:
        """Nothing: `add` and `finish` yield all whole blocks."""
        yield from ()

    def finish(self) -> Iterator[Message]:
        """The last message.

        Raises:
          TruncatedError: the file ends inside its header or a block.
        """
        yield from self._messages(self._cutter.finish())

    def _messages(self, containers: Iterable[tuple[int, bytes]]) -> Iterator[Message]:
        for offset, container in containers:
            yield Message(container, self._modified_ms, self._path, offset)
        damage = self._cutter.damage
        if damage:
            raise (
                TruncatedError(str(damage))
                if isinstance(damage, EarlyEndError)
                else DamagedError(str(damage))
            )
