"""Tokens of writers, from a file with one token per line."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Iterable


class Tokens:
    """The tokens that writers may send."""

    def __init__(self, tokens: Iterable[str]) -> None:
        self._digests = [_digest(token.encode()) for token in tokens]

    @classmethod
    def parse(cls, text: str) -> Tokens:
        """The tokens of a file: one per line, without blank lines and lines that begin with `#`.

        Raises:
          ValueError: there is none.
        """
        lines = [line.strip() for line in text.splitlines()]
        tokens = [line for line in lines if line and not line.startswith("#")]
        if not tokens:
            raise ValueError("it has no tokens: write one per line")
        return cls(tokens)

    def allow(self, authorization: str) -> bool:
        """Whether the value of an Authorization header has one of the tokens.

        As `Bearer TOKEN`, as `Token TOKEN` (InfluxDB), or as the password of `Basic`. Each comparison takes
        the same time, whatever the token.
        """
        scheme, _, credentials = authorization.strip().partition(" ")
        token = credentials.strip().encode("utf-8", "replace")
        if scheme.lower() == "basic":
            try:
                token = base64.b64decode(token, validate=True).partition(b":")[2]
            except binascii.Error:
                return False
        elif scheme.lower() not in ("bearer", "token"):
            return False
        digest = _digest(token)
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        return any(matches)


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()
