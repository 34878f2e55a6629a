"""A TSD's telnet port: `put` and `histogram` lines, `version` and `exit`; nothing else is known.

A good line has no answer, so a sender never learns what was stored: a kill loses the lines that were read and
not yet published. A connection is read no further until its lines are in Pub/Sub.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Mapping
from typing import NamedTuple

from timebeam.pipelines.serve.route_requests import TSD_VERSION, Counters
from timebeam.pipelines.serve.writes.bodies import BodyContent, BodyParser
from timebeam.pipelines.serve.writes.publisher import Publisher, PublishError
from timebeam.schema.bits.reasons import Reason

LINE_BYTES = 1024
"""The longest line, as with a TSD."""

CHUNK_BYTES = 1 << 16
"""Lines that are parsed and published together."""

CONNECTIONS = 1_000

ANSWERS = 100
"""Lines of a chunk that are answered; a sender may read none of the answers."""

IDLE_SECONDS = 300.0
"""How long a connection may be without a whole line, or leave answers unread."""

FORMATS = {"put": "opentsdb-text", "histogram": "opentsdb-histogram"}
"""The message format of the lines of each command."""

_PAUSE_SECONDS = 5.0
_GRACE_SECONDS = 10.0
_INVALID_VALUES = (Reason.BAD_NUMBER, Reason.NUMBER_OUT_OF_RANGE)
_VERSION = f"net.opentsdb.tools {TSD_VERSION} built at revision timebeam (MINT)\n".encode()
_LOG = logging.getLogger("timebeam.serve")


class TelnetAddress(NamedTuple):
    """Where to listen.

    Attributes:
      shared: whether several processes listen there.
    """

    host: str
    port: int
    shared: bool = False


class TelnetPort:
    """Takes lines of text; belongs to one event loop."""

    def __init__(self, parser: BodyParser, publisher: Publisher, counters: Counters) -> None:
        self._parser, self._publisher, self._counters = parser, publisher, counters
        self._tasks: set[asyncio.Task[None]] = set()
        self._busy: set[asyncio.Task[None]] = set()

    @contextlib.asynccontextmanager
    async def running(self, address: TelnetAddress) -> AsyncIterator[None]:
        """Listens meanwhile; at the end, lines that were read are published, for some seconds."""
        server = await asyncio.start_server(
            self._serve, address.host, address.port, limit=CHUNK_BYTES, reuse_port=address.shared or None
        )
        try:
            yield
        finally:
            server.close()
            if self._busy:
                await asyncio.wait(self._busy, timeout=_GRACE_SECONDS)
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        task = asyncio.current_task()
        assert task is not None
        try:
            if len(self._tasks) < CONNECTIONS:
                self._tasks.add(task)
                await self._read(reader, writer, task)
        except TimeoutError:
            writer.transport.abort()  # what it has not read is dropped too
        except (OSError, asyncio.CancelledError):
            pass  # the peer has gone, or the server stops
        finally:
            self._tasks.discard(task)
            self._busy.discard(task)
            writer.close()

    async def _read(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, task: asyncio.Task[None]
    ) -> None:
        """Reads lines until the end, or until `exit`."""
        rest, is_skipping = b"", False
        clock = asyncio.get_running_loop().time
        deadline = clock() + IDLE_SECONDS
        while True:
            async with asyncio.timeout_at(deadline):
                data = await reader.read(CHUNK_BYTES)
            if not data:
                return
            lines, newline, rest = (rest + data).rpartition(b"\n")
            if is_skipping and newline:
                lines, is_skipping = lines.partition(b"\n")[2], False
            if len(rest) > LINE_BYTES:
                if not is_skipping:
                    writer.write(_too_long(rest))
                rest, is_skipping = b"", True
            self._busy.add(task)
            goes_on = not newline or await self._take(lines.split(b"\n"), writer)
            async with asyncio.timeout(IDLE_SECONDS):
                await writer.drain()
            self._busy.discard(task)
            if not goes_on:
                return
            if newline:
                deadline = clock() + IDLE_SECONDS

    async def _take(self, lines: list[bytes], writer: asyncio.StreamWriter) -> bool:
        """Stores and answers some lines; whether the connection goes on."""
        stored: dict[str, list[bytes]] = {command: [] for command in FORMATS}
        answers: list[bytes] = []
        goes_on = True
        for line in lines:
            command = line.strip().partition(b" ")[0].decode("utf-8", "replace")
            if len(line) > LINE_BYTES:
                answers.append(_too_long(line))
            elif command in stored:
                stored[command].append(line.strip())
            elif command in ("exit", "diediedie"):
                goes_on = False
                break
            elif command == "version":
                answers.append(_VERSION)
            elif command:
                answers.append(f"unknown command: {command}.  Try `help'.\n".encode())
        for command, of_command in stored.items():
            answers += await self._stored(command, of_command)
        writer.writelines(answers[:ANSWERS])
        return goes_on

    async def _stored(self, command: str, lines: list[bytes]) -> list[bytes]:
        """Publishes lines, if one of them is good; the answers to those that are rejected."""
        if not lines:
            return []
        text, attributes = b"\n".join(lines), {"format": FORMATS[command]}
        content = await self._parser.parse(text, attributes)
        if content.may_have_points:
            await self._publish(text, attributes)
        self._counters.add("timebeam_written_points_total", content.points, "telnet", "published")
        self._counters.add("timebeam_written_points_total", content.rejected_points, "telnet", "rejected")
        return _rejections(command, content)

    async def _publish(self, text: bytes, attributes: Mapping[str, str]) -> None:
        """Publishes lines, however long it takes."""
        while True:
            try:
                await self._publisher.publish(text, attributes, None)
                return
            except PublishError as error:
                _LOG.error("telnet lines wait: %s", error)
                await asyncio.sleep(_PAUSE_SECONDS)


def _too_long(line: bytes) -> bytes:
    return b"put: illegal argument: the line has more than %d bytes: %s ...\n" % (LINE_BYTES, line[:40])


def _rejections(command: str, content: BodyContent) -> list[bytes]:
    """The answers to rejected lines."""
    return [
        f"{command}: {'invalid value' if rejected.reason in _INVALID_VALUES else 'illegal argument'}: "
        f"{rejected.message}\n".encode("utf-8", "replace")
        for rejected in content.rejected
    ]
