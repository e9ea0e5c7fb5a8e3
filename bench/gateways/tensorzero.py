"""TensorZero (Rust). No registry has its gateway as a program, but its Python package can serve it over HTTP.

Its observability would need a database and is off, so it meters nothing.
"""

from pathlib import Path

from bench.gateways.base import Launch
from bench.gateways.install import PINS, pinned_version, python_environment
from bench.workload import Target

CONFIG = """
[gateway.observability]
enabled = false

[models.bench]
routing = ["bench"]

[models.bench.providers.bench]
type = "openai"
model_name = "bench"
api_base = "http://127.0.0.1:{upstream_port}/v1/"
api_key_location = "none"
"""


class TensorZero:
    """The embedded gateway in a process of its own."""

    name = "TensorZero"

    def install(self) -> str:
        python_environment("tensorzero")
        return pinned_version("tensorzero")

    def prepare(self, folder: Path, port: int, upstream_port: int) -> Launch:
        config, port_file = folder / "tensorzero.toml", folder / "port"
        config.write_text(CONFIG.format(upstream_port=upstream_port))
        python = python_environment("tensorzero") / "python"
        command = [python, PINS / "serve_tensorzero.py", config, port_file]
        target = Target(port, "tensorzero::model_name::bench", path="/openai/v1/chat/completions")
        return Launch(command, target, port_file=port_file)
