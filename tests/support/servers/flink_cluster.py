"""A Flink cluster on this machine with high availability: ZooKeeper, a job manager, a task manager."""

from __future__ import annotations

import contextlib
import subprocess
from pathlib import Path

from timebeam.pipelines.local import flink
from timebeam.pipelines.local.emulator import child

_ZOOKEEPER = "org.apache.flink.shaded.zookeeper3.org.apache.zookeeper.server.ZooKeeperServerMain"
_JOB_MANAGER = "org.apache.flink.runtime.entrypoint.StandaloneSessionClusterEntrypoint"
_TASK_MANAGER = "org.apache.flink.runtime.taskexecutor.TaskManagerRunner"


class FlinkCluster:
    """The cluster, which listens on localhost only; used in a `with`.

    Args:
      folder: a new folder for logs, the state of the jobs and temporary files.

    Attributes:
      address: HOST:PORT of the job manager.
      configuration: the text of flink-conf.yaml.
    """

    def __init__(self, folder: Path) -> None:
        flink.fetch_jars()
        self._folder, self._stack = folder, contextlib.ExitStack()
        self._zookeeper, self._port, rpc = (flink.free_port() for _ in range(3))
        self.address = f"localhost:{self._port}"
        (folder / "temporary").mkdir(parents=True)
        self.configuration = f"""\
jobmanager.rpc.address: localhost
jobmanager.rpc.port: {rpc}
jobmanager.bind-host: localhost
rest.address: localhost
rest.port: {self._port}
rest.bind-address: localhost
taskmanager.host: localhost
taskmanager.bind-host: localhost
taskmanager.numberOfTaskSlots: 2
taskmanager.cpu.cores: 2
taskmanager.memory.framework.heap.size: 128mb
taskmanager.memory.framework.off-heap.size: 128mb
taskmanager.memory.task.heap.size: 512mb
taskmanager.memory.task.off-heap.size: 0
taskmanager.memory.network.min: 256mb
taskmanager.memory.network.max: 256mb
taskmanager.memory.managed.size: 128mb
taskmanager.memory.jvm-metaspace.size: 256mb
taskmanager.memory.jvm-overhead.min: 192mb
taskmanager.memory.jvm-overhead.max: 192mb
io.tmp.dirs: {folder}/temporary
high-availability.type: zookeeper
high-availability.zookeeper.quorum: localhost:{self._zookeeper}
high-availability.zookeeper.client.session-timeout: 5000
high-availability.storageDir: file://{folder}/jobs
high-availability.cluster-id: /timebeam
restart-strategy.type: fixed-delay
restart-strategy.fixed-delay.attempts: 3
restart-strategy.fixed-delay.delay: 15 s
"""
        (folder / "flink-conf.yaml").write_text(self.configuration)

    def __enter__(self) -> FlinkCluster:
        with contextlib.ExitStack() as stack:
            settings = self._folder / "zookeeper.cfg"
            settings.write_text(
                f"tickTime=500\ndataDir={self._folder}/zookeeper\nclientPort={self._zookeeper}\n"
                "clientPortAddress=127.0.0.1\nadmin.enableServer=false\n"
            )
            self._stack = stack
            self._start("zookeeper", [_ZOOKEEPER, str(settings)], self._zookeeper)
            self.job_manager = self.start_job_manager()
            self._start("task-manager", [_TASK_MANAGER, "--configDir", str(self._folder)])
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def start_job_manager(self, name: str = "job-manager") -> subprocess.Popen[bytes]:
        """A job manager; it leads when no other one does."""
        return self._start(name, [_JOB_MANAGER, "--configDir", str(self._folder)], self._port)

    def log(self, name: str) -> str:
        """What a process has logged."""
        return (self._folder / f"{name}.log").read_text()

    def _start(self, name: str, command: list[str], port: int | None = None) -> subprocess.Popen[bytes]:
        log = self._stack.enter_context((self._folder / f"{name}.log").open("wb"))
        process = self._stack.enter_context(child(flink.java(*command, memory="512m"), log))
        if port is not None:
            flink.wait_for(port, process, self._folder / f"{name}.log")
        return process
