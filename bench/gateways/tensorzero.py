"""TensorZero (Rust). Its registry has no gateway program; its Python package holds the gateway and serves it over HTTP.

Its observability needs a database of its own and is off: it counts nothing.
"""

from pathlib import Path

from bench.asking import Target
from bench.gateways.base import Launch
from bench.gateways.install import PINS, pinned_version, python_environment

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
    """The embedded gateway, alone in a process."""

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
