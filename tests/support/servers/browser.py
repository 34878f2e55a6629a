"""Debian's Chromium without a window, driven over a pipe by the DevTools protocol."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_SECONDS = 60


class Browser:
    """One page.

    Attributes:
      errors: of its scripts, and what it was not allowed to load.
      urls: that it asked for.
    """

    def __init__(self, reading: int, writing: int) -> None:
        self._reading, self._writing = os.fdopen(reading, "rb"), os.fdopen(writing, "wb")
        self._numbers, self._session = itertools.count(1), ""
        self.errors: list[str] = []
        self.urls: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self._session = session
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The result of a command."""
        number = next(self._numbers)
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        self._writing.write(json.dumps(message).encode() + b"\0")
        self._writing.flush()
        while True:
            answer = json.loads(self._receive())
            if answer.get("id") == number:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result
            self._note(answer)

    def _receive(self) -> bytes:
        received = bytearray()
        while (byte := self._reading.read(1)) != b"\0":
            assert byte, "the browser has ended"
            received += byte
        return bytes(received)

    def _note(self, event: dict[str, Any]) -> None:
        parameters = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            self.errors.append(str(parameters["exceptionDetails"]))
        if event.get("method") == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            self.errors.append(f"{parameters['entry']['text']} {parameters['entry'].get('url', '')}")
        if event.get("method") == "Network.requestWillBeSent":
            self.urls.append(parameters["request"]["url"])

    def open(self, url: str) -> None:
        """Loads a page."""
        self.call("Page.navigate", url=url)
        self.until("location.protocol === 'http:' && document.readyState === 'complete'")

    def evaluate(self, script: str) -> Any:
        """The value of an expression, or of its promise."""
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def until(self, script: str) -> Any:
        """The value of an expression, as soon as it is true."""
        deadline = time.monotonic() + _SECONDS
        while not (value := self.evaluate(script)):
            assert time.monotonic() < deadline, (
                script,
                self.evaluate("document.body.innerText"),
                self.errors,
            )
            time.sleep(0.05)
        return value

    def press(self, key: str, code: int) -> None:
        """Presses a key such as Tab, by its name and number."""
        text = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **text
            )

    def type(self, text: str) -> None:
        """Types text where the focus is."""
        self.call("Input.insertText", text=text)


@contextlib.contextmanager
def running_browser(binary: str, folder: Path) -> Iterator[Browser]:
    """A browser that runs meanwhile; it reads commands from its file 3 and answers in its file 4."""
    commands, answers = os.pipe(), os.pipe()
    arguments = [
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--no-first-run",
    ]
    script = f'exec "$0" "$@" 3<&{commands[0]} 4>&{answers[1]}'
    with (folder / "chromium.log").open("w") as log:
        process = subprocess.Popen(
            [
                "/bin/bash",
                "-c",
                script,
                binary,
                *arguments,
                f"--user-data-dir={folder}",
                "--remote-debugging-pipe",
            ],
            pass_fds=(commands[0], answers[1]),
            stdout=log,
            stderr=log,
        )
    os.close(commands[0])
    os.close(answers[1])
    try:
        yield Browser(answers[0], commands[1])
    finally:
        process.terminate()
        process.wait(_SECONDS)
