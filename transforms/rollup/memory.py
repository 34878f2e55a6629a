"""Returns freed memory to the system."""

from __future__ import annotations

import ctypes
import functools

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h of glibc
_BYTES = 1 << 20


@functools.cache
def give_back_memory() -> None:
    """Makes this process return blocks of a megabyte or more to the system when they are freed.

    By default glibc raises this limit to 32 MB when a block of that size is freed, and then keeps up to twice
    as much in each arena (about one per thread). Numpy's arrays are such blocks, so a worker would hold
    several times the memory that it uses. Without glibc (musl, macOS) this does nothing.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _BYTES)
        mallopt(_M_TRIM_THRESHOLD, _BYTES)
