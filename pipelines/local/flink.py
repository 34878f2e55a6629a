"""Beam's job server for Apache Flink, and Python workers beside it, until Ctrl-C.

    python -m timebeam.pipelines.local.flink                                    # Flink within the job server
    python -m timebeam.pipelines.local.flink --flink_master jobmanager:8081     # a Flink cluster
    python -m timebeam.pipelines.local.flink --flink_master jobmanager:8081 --flink_conf flink-conf.yaml

Needs Java 11 or 17, and Maven the first time: it copies the 160 jars of flink-pom.xml into a folder. Prints
the options for `timebeam`; docs/concepts/choose.md explains each step.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from timebeam.pipelines.local.emulator import child

_POM = Path(__file__).with_name("flink-pom.xml")
JARS = Path("~/.cache/timebeam/flink").expanduser() / re.findall("<beam.version>(.+?)<", _POM.read_text())[0]
"""Where the jars are kept, by the version of Beam."""

_OPENED = ["lang", "util", "nio", "time", "net", "text", "lang.invoke", "lang.reflect", "util.concurrent"]
"""Packages below `java.` into which Flink looks by reflection."""

_CACHE_S, _RESTART_S = 10, 15
"""Beam keeps workers so long after their last use, dead ones too: Flink restarts a job after that."""

_CONFIGURATION = f"""\
restart-strategy.type: fixed-delay
restart-strategy.fixed-delay.attempts: 3
restart-strategy.fixed-delay.delay: {_RESTART_S} s
taskmanager.memory.network.min: 64mb
taskmanager.memory.network.max: 64mb
taskmanager.memory.managed.size: 128mb
"""
_START_SECONDS = 120


def missing() -> str | None:
    """Why there can be no Flink on this machine; None if there can."""
    if not shutil.which("java"):
        return "no java on PATH"
    if not JARS.exists() and not shutil.which("mvn"):
        return f"no mvn on PATH, and no {JARS}"
    return None


def fetch_jars() -> None:
    """Copies the jars into `JARS`, if it does not exist.

    Raises:
      subprocess.CalledProcessError: Maven could not get them.
    """
    if JARS.exists():
        return
    JARS.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=JARS.parent) as folder:
        maven = ["mvn", "-B", "-q", "-f", str(_POM), "dependency:copy-dependencies"]
        subprocess.run([*maven, f"-DoutputDirectory={folder}/jars"], check=True, stdout=sys.stderr)
        Path(folder, "jars").rename(JARS)


def java(program: str, *arguments: str, memory: str = "1g") -> list[str]:
    """The command of a program of the jars.

    Args:
      program: its class.
    """
    opens = [f"java.base/java.{package}" for package in _OPENED] + ["java.base/sun.nio.ch"]
    options = [f"-Xmx{memory}", *(f"--add-opens={package}=ALL-UNNAMED" for package in opens)]
    return [str(shutil.which("java")), *options, "-cp", f"{JARS}/*", program, *arguments]


@contextlib.contextmanager
def engine(
    folder: Path,
    *,
    master: str = "[local]",
    configuration: str = _CONFIGURATION,
    workers: int = 2,
    job_port: int = 0,
    pool_port: int = 0,
) -> Iterator[list[str]]:
    """Starts job server and worker pool; gives the options with which a command runs on them.

    Args:
      folder: for logs, Flink's configuration and staged files.
      master: HOST:PORT of a Flink cluster; `[local]` runs Flink within the job server.
      configuration: Flink's; with high availability that of the cluster, so that the job server finds the
        job manager that leads.
      workers: parallelism, and the number of Python processes of each task manager.
      job_port, pool_port: 0 for any free one.

    Raises:
      RuntimeError: one of them did not start.
      subprocess.CalledProcessError: Maven could not get the jars.
    """
    fetch_jars()
    job_port, pool_port = job_port or free_port(), pool_port or free_port()
    (folder / "flink-conf.yaml").write_text(configuration)
    server = java(
        "org.apache.beam.runners.flink.FlinkJobServerDriver",
        *("--job-host=localhost", f"--job-port={job_port}", "--artifact-port=0", "--expansion-port=0"),
        *(f"--artifacts-dir={folder}/artifacts", f"--flink-master={master}", f"--flink-conf-dir={folder}"),
    )
    # The pool starts workers by the name `python`.
    path = f"PATH={Path(sys.executable).parent}:{os.environ['PATH']}"
    pool = [str(shutil.which("env")), path, "PYTHONWARNINGS=ignore", "PYTHONSAFEPATH=1", "python", "-P", "-m"]
    pool += ["apache_beam.runners.worker.worker_pool_main", f"--service_port={pool_port}"]
    with contextlib.ExitStack() as stack:
        for name, command, port in (("job-server", server, job_port), ("workers", pool, pool_port)):
            log = stack.enter_context((folder / f"{name}.log").open("wb"))
            process = stack.enter_context(child(command, log))
            # They are leaders of their sessions: what they started ends with them.
            stack.callback(_end_group, process)
            wait_for(port, process, folder / f"{name}.log")
        yield [
            "--runner=PortableRunner",
            f"--job_endpoint=localhost:{job_port}",
            "--environment_type=EXTERNAL",
            f"--environment_config=localhost:{pool_port}",
            f"--environment_cache_millis={1000 * _CACHE_S}",
            f"--parallelism={workers}",
            f"--sdk_worker_parallelism={workers}",
        ]


def free_port() -> int:
    """A port of this machine on which nothing listens."""
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        return int(listener.getsockname()[1])


def _end_group(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def wait_for(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    """Raises RuntimeError, with the end of the log, if the process does not listen in time."""
    until = time.monotonic() + _START_SECONDS
    while process.poll() is None and time.monotonic() < until:
        with contextlib.suppress(OSError), socket.create_connection(("localhost", port)):
            return
        time.sleep(0.2)
    raise RuntimeError(f"{log.stem} does not answer: {log.read_text(errors='replace')[-2000:]}")


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--flink_master", default="[local]", help="HOST:PORT of a cluster (default: none)")
    parser.add_argument(
        "--flink_conf", type=Path, help="flink-conf.yaml of a cluster with high availability (default: none)"
    )
    parser.add_argument("--workers", type=int, default=2, help="parallelism (default: %(default)s)")
    parser.add_argument("--job_port", type=int, default=8099, help="(default: %(default)s)")
    parser.add_argument("--pool_port", type=int, default=50111, help="(default: %(default)s)")
    options = parser.parse_args()
    why = missing()
    if why:
        parser.error(why)
    configuration = options.flink_conf.read_text() if options.flink_conf else _CONFIGURATION
    with (
        tempfile.TemporaryDirectory(prefix="timebeam-flink-") as folder,
        engine(
            Path(folder),
            master=options.flink_master,
            configuration=configuration,
            workers=options.workers,
            job_port=options.job_port,
            pool_port=options.pool_port,
        ) as flags,
        contextlib.suppress(KeyboardInterrupt),
    ):
        print(f"logs: {folder}", file=sys.stderr)
        print(" ".join(flags), flush=True)
        threading.Event().wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
