"""vllm-router and sglang-router (Rust): they balance requests over workers, without keys or metering."""

from pathlib import Path

from bench.gateways.base import Launch, free_port
from bench.gateways.install import pinned_version, python_environment
from bench.workload import Target


class Router:
    """A router with one worker: the upstream."""

    def __init__(self, name: str, *verbs: str) -> None:
        self.name = name
        self._verbs = verbs

    def install(self) -> str:
        python_environment(self.name)
        return pinned_version(self.name)

    def prepare(self, folder: Path, port: int, upstream_port: int) -> Launch:
        program = python_environment(self.name) / self.name
        listening = ["--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(free_port())]
        worker = ["--worker-urls", f"http://127.0.0.1:{upstream_port}", "--policy", "round_robin"]
        logs = ["--log-dir", str(folder), "--log-level", "error"]
        return Launch([str(program), *self._verbs, *listening, *worker, *logs], Target(port))
