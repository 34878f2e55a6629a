"""A bounded number of requests at once: the others wait in their order, and beyond that are turned away."""

from __future__ import annotations

import asyncio

from timebeam.schema.api.errors import ApiError

RETRY_SECONDS = 5


def overloaded(why: str) -> ApiError:
    """The answer to a request that is turned away: 503, with the time to wait before the next try."""
    return ApiError(f"{why}: try again later", 503, headers={"Retry-After": str(RETRY_SECONDS)})


class Gate:
    """Lets `most` requests through at once and `waiting` more wait.

    Attributes:
      running, queued: how many there are now.
    """

    def __init__(self, most: int, waiting: int) -> None:
        self._waiting, self._semaphore = waiting, asyncio.Semaphore(most)
        self._most = most
        self.running = self.queued = 0

    async def enter(self) -> None:
        """Waits for its turn.

        Raises:
          ApiError: too many wait already: 503, with the time to wait before the next try.
        """
        if self._semaphore.locked() and self.queued >= self._waiting:
            raise overloaded(f"{self._most} queries run and {self._waiting} wait")
        self.queued += 1
        try:
            await self._semaphore.acquire()
        finally:
            self.queued -= 1
        self.running += 1

    def leave(self) -> None:
        """Lets the next one in."""
        self.running -= 1
        self._semaphore.release()
