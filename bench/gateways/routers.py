"""vllm-router and sglang-router (Rust): they spread requests over workers, and neither know keys nor count."""

from pathlib import Path

from bench.asking import Target
from bench.gateways.base import Launch, free_port
from bench.gateways.install import pinned_version, python_environment


class Router:
    """A router before one worker, which is the upstream."""

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
