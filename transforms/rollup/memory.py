"""Memory that is free goes back to the system."""

from __future__ import annotations

import ctypes
import functools

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h of glibc
_BYTES = 1 << 20


@functools.cache
def give_back_memory() -> None:
    """Makes this process return blocks of a megabyte and more when they are freed, for good.

    Left alone, glibc raises this bound to 32 MB as soon as a block of that size is freed, and from then on
    keeps, in each of its arenas (about one for each thread), up to twice as much for later. Numpy's arrays
    are such blocks, so that a worker comes to hold several times what it uses. Elsewhere (musl, macOS)
    there is nothing to set, and nothing is done.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _BYTES)
        mallopt(_M_TRIM_THRESHOLD, _BYTES)
