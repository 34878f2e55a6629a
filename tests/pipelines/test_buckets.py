"""Buckets that a command is given: one line says what is wrong with them, before the command begins."""

from __future__ import annotations

import contextlib
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import google.auth
import pytest
import requests
from google.auth.credentials import AnonymousCredentials
from google.auth.exceptions import DefaultCredentialsError
from google.resumable_media import InvalidResponse

from tests.support.commands import timebeam
from timebeam.pipelines import cli

COMMANDS = {
    "delete": ("--layout=opentsdb", "--keep-days=1", "--unattended", "--log=gs://{}/run"),
    "ingest": ("--layout=opentsdb", "--format=influx", "--dead-letters=d", "--input", "gs://{}/*.txt"),
    "export": ("--layout=opentsdb", "--start=0", "--end=1", "--output=gs://{}/days"),
    "query": ("m", "--layout=opentsdb", "--start=0", "--rollup-config=gs://{}/rollups.json"),
    "check": ("--config=gs://{}/timebeam.toml",),
}


class _Answer(http.server.BaseHTTPRequestHandler):
    """404 for a bucket whose name begins with `missing`, else 403."""

    def do_GET(self) -> None:
        self.send_error(404 if "/missing" in self.path else 403)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def storage(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(google.auth, "default", lambda **_: (AnonymousCredentials(), "p"))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Answer)
    threading.Thread(target=server.serve_forever).start()
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{server.server_port}")
    with contextlib.closing(server.socket):
        yield
        server.shutdown()


@pytest.mark.parametrize("command", COMMANDS)
def test_a_bucket_that_is_missing_or_cannot_be_reached(
    storage: None, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    for bucket, port, message in (
        (f"missing-{command}", None, "there is no bucket gs://missing-"),
        (f"far-{command}", 1, "cannot be reached: check the network and the credentials: "),
    ):
        if port:
            monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{port}")
        ran = timebeam(command, *(word.format(bucket) for word in COMMANDS[command]))
        assert (ran.code, ran.err.count("\n"), message in ran.err) == (1, 1, True), ran.err


def test_a_bucket_of_a_profile_is_looked_for_too(storage: None, tmp_path: Path) -> None:
    (tmp_path / "t.toml").write_text('layout = "opentsdb"\nlog = "gs://missing-of-profile/run"\n')
    ran = timebeam("delete", "--config", tmp_path / "t.toml", "--keep-days=1", "--unattended")
    assert (ran.code, "there is no bucket gs://missing-of-profile" in ran.err) == (1, True), ran.err


@pytest.mark.parametrize("auth", [(), ("--no_auth",)])
def test_without_credentials_one_line_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, auth: tuple[str, ...]
) -> None:
    """Beam looks for credentials also with --no_auth, for half a minute, and connects for two more."""

    def none(**_: object) -> None:
        raise DefaultCredentialsError("none")

    monkeypatch.setattr(google.auth, "default", none)
    words = (word.format(f"none-{len(auth)}") for word in COMMANDS["ingest"])
    ran = timebeam("ingest", *words, *auth)
    assert (ran.code, "run `gcloud auth application-default login`" in ran.err) == (2, True), ran.err
    assert ran.err.count("\n") == 2, ran.err  # and where the options are explained


def test_a_bucket_that_may_not_be_looked_for_may_be_there(storage: None) -> None:
    cli._check_buckets(["--log=gs://unknown/run"])


def test_a_rejected_upload_says_who_may_not_do_what() -> None:
    """Beam raises such an error again with its text in the place of the response."""
    response = requests.Response()
    response.status_code, response._content = 403, b'{"error": {"message": "x may not create objects"}}'
    response.request = requests.Request("POST", "https://storage/b/o").prepare()
    error = InvalidResponse("(403, 'Expected one of') [while running 'DeadLetters']")
    error.__cause__ = InvalidResponse(response, 403, "Expected one of")
    assert cli._text(error) == "403 POST https://storage/b/o: x may not create objects"
    assert isinstance(error, cli._failures())
