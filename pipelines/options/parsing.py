"""What messages about a command line are made of, a check of the buckets that it names, and notes.

`note` and `detail` print what --quiet and --verbose decide.
"""

from __future__ import annotations

import contextvars
import difflib
import enum
import functools
import re
import sys
from collections.abc import Iterable, Mapping

from timebeam.pipelines.options.parameters import UsageError

_ENDS = {"\t": "\\t", "\n": "\\n", "\r": "\\r"}
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def one_line(text: str) -> str:
    """A text without the characters that end a line, move a cursor, or cannot be printed: escaped."""
    return _CONTROL.sub(lambda match: _ENDS.get(match[0], ascii(match[0])[1:-1]), text)


RENAMED = {
    "mark_touched": "mark_changed",
    "max_refused": "max_rejected",
    "refuse": "reject",
    "refused": "rejected",
    "seal": "archive",
    "touched": "changed",
}
"""Commands, options, keys of timebeam.toml and values of options: as they were before 0.1.0, and are now."""


def did_you_mean(word: str, choices: Iterable[str], shown: Mapping[str, str] | None = None) -> str:
    """`: did you mean CHOICE?` for the choice that is most like a word; empty if none is.

    A word that was renamed has its new name: `: it is now CHOICE`.

    Args:
      shown: how to give a choice, if not by itself.
    """
    shown = shown or {}
    names = sorted(choices)
    new = RENAMED.get(_plain(word))
    for choice in names:
        if _plain(choice) == new:
            return f": it is now {shown.get(choice, choice)}"
    close = difflib.get_close_matches(word, names, 1)
    return f": did you mean {shown.get(close[0], close[0])}?" if close else ""


def _plain(word: str) -> str:
    """A name without what an option's has before it and between its words."""
    return word.lstrip("-").replace("-", "_")


class Verbosity(enum.Enum):
    """What a command says beside its results and what goes wrong."""

    QUIET = enum.auto()
    """Nothing."""
    NORMAL = enum.auto()
    """Its progress, and notes."""
    VERBOSE = enum.auto()
    """The settings in force and the stack of an error too."""


VERBOSITY = contextvars.ContextVar("VERBOSITY", default=Verbosity.NORMAL)
"""Of the command that runs; `timebeam.pipelines.cli` sets it."""


def note(text: str) -> None:
    """Prints a line on standard error that is no result and no warning; not with --quiet."""
    if VERBOSITY.get() is not Verbosity.QUIET:
        print(text, file=sys.stderr)


def detail(text: str) -> None:
    """Prints a line on standard error with --verbose only."""
    if VERBOSITY.get() is Verbosity.VERBOSE:
        print(text, file=sys.stderr)


_BUCKET = re.compile(r"(?:^|=)gs://([^/?*\[]+)")
_SECONDS = 10


def check_buckets(texts: Iterable[object]) -> None:
    """Checks that buckets exist, each once: those that a text begins with, or names after a `=`.

    Before a command begins: Beam would try for two minutes.

    Raises:
      UsageError: there are no credentials.
      OSError: there is no such bucket, or it cannot be reached.
    """
    for bucket in sorted({name for text in texts for name in _BUCKET.findall(str(text))}):
        _check(bucket)


@functools.cache
def _check(bucket: str) -> None:
    """Checks that a bucket exists; does nothing without the permission for that, which files do not need.

    Raises:
      UsageError, OSError: see `check_buckets`.
    """
    import google.auth
    from google.api_core.exceptions import Forbidden, GoogleAPIError, Unauthorized
    from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError
    from google.cloud.storage import Client
    from requests import RequestException

    try:
        credentials, project = google.auth.default()
    except DefaultCredentialsError as error:
        raise UsageError(
            "no Google Cloud credentials for gs:// paths: run `gcloud auth application-default login`"
        ) from error
    try:
        client = Client(project or bucket, credentials)  # it needs a project; any name will do
        exists = client.bucket(bucket).exists(timeout=_SECONDS, retry=None)
    except (Forbidden, Unauthorized):
        return
    except (GoogleAPIError, GoogleAuthError, RequestException) as error:
        raise ConnectionError(
            f"bucket gs://{bucket} cannot be reached: check the network and the credentials: "
            f"{one_line(str(error))}"
        ) from error
    if not exists:
        raise FileNotFoundError(f"there is no bucket gs://{bucket}: create it, or name another one")
