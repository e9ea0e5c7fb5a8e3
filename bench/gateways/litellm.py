"""The LiteLLM proxy (Python) with its defaults and a master key; per-user keys and budgets would need Postgres."""

from pathlib import Path

from bench.gateways.base import Launch
from bench.gateways.install import pinned_version, python_environment
from bench.workload import Target

KEY = "sk-bench-0123456789"
CONFIG = """
model_list:
  - model_name: bench
    litellm_params:
      model: openai/bench
      api_base: http://127.0.0.1:{upstream_port}/v1
      api_key: bench
general_settings:
  master_key: {key}
litellm_settings:
  telemetry: false
"""


class LiteLLM:
    """One worker of the proxy."""

    name = "LiteLLM"

    def install(self) -> str:
        python_environment("litellm")
        return pinned_version("litellm")

    def prepare(self, folder: Path, port: int, upstream_port: int) -> Launch:
        config = folder / "litellm.yaml"
        config.write_text(CONFIG.format(upstream_port=upstream_port, key=KEY))
        program = python_environment("litellm") / "litellm"
        command: list[str | Path] = [
            program,
            "--config",
            config,
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
            "--num_workers",
            "1",
        ]
        env = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_MODE": "PRODUCTION"}
        return Launch(command, Target(port, headers={"authorization": f"Bearer {KEY}"}), env)
