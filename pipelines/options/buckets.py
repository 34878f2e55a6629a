"""Checks, before a command begins, that its buckets exist: Beam would try for two minutes."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable

from timebeam.pipelines.options.parameters import UsageError
from timebeam.pipelines.options.parsing import one_line

_BUCKET = re.compile(r"(?:^|=)gs://([^/?*\[]+)")
_SECONDS = 10


def check_buckets(texts: Iterable[object]) -> None:
    """Checks that buckets exist, each once: those that a text begins with, or names after a `=`.

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
