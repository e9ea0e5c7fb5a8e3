"""Cadenza with every feature on: a real key, limits, the ledger on a real disk, the request log in a file."""

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

from bench.gateways.base import Launch
from bench.machine import CannotRun
from bench.workload import Target

CLI_S = 1800.0  # checking ten million entries takes long
EMAIL = "bench@example.org"
CLASS = "forte"
SQLITE = "sqlite:///./data/cadenza.db"
CONFIG = """
[server]
workers = 1

[store]
url = "{store_url}"

[shared_state]
url = "{shared_url}"

[limits]
requests_per_second = 1_000_000
burst = 1_000_000
concurrency = 100_000

[providers.bench]
kind = "openai"
base_url = "http://127.0.0.1:{upstream_port}/v1"
retention = "zero"

[[classes.forte.routes]]
provider = "bench"
model = "bench"
context_tokens = 1_000_000
max_output_tokens = 131_072
timeouts = {{ connect_s = 30, first_token_s = 300, idle_s = 600 }}
"""


class Cadenza:
    """The installed source, or another source tree through PYTHONPATH; both use the packages of this environment."""

    name = "Cadenza"

    def __init__(self, source: Path | None = None) -> None:
        self._env = {"PYTHONPATH": str(source)} if source else {}
        self.program = Path(sys.executable).parent / "cadenza"

    def install(self) -> str:
        if not self.program.exists():
            raise CannotRun(f"{self.program} does not exist; run make setup")
        return importlib.metadata.version("cadenza")

    def prepare(self, folder: Path, port: int, upstream_port: int) -> Launch:
        """Create an account and a key once per folder; the data survives a restart."""
        serve = self.configure(folder, upstream_port)
        secret = folder / "key"
        if not secret.exists():
            self.cli(folder, "account", "create", EMAIL, "--credit", "1000000.00", "--password-stdin")
            secret.write_text(self.cli(folder, "key", "create", "--account", EMAIL, "--expires", "never").strip())
        return Launch(
            [*serve, str(port)], Target(port, CLASS, {"authorization": f"Bearer {secret.read_text()}"}), self._env
        )

    def configure(
        self, folder: Path, upstream_port: int, store_url: str = SQLITE, shared_url: str = "memory://", more: str = ""
    ) -> list[str]:
        """Write the config, with `more` at its end. Returns the command that serves with it, without its port."""
        folder.mkdir(parents=True, exist_ok=True)
        config = (CONFIG + more).format(upstream_port=upstream_port, store_url=store_url, shared_url=shared_url)
        (folder / "cadenza.toml").write_text(config)
        return [str(self.program), "serve", "--config", str(folder / "cadenza.toml"), "--port"]

    def cli(self, folder: Path, *args: str) -> str:
        """Run a `cadenza` command and return its output."""
        done = subprocess.run(
            [str(self.program), *args, "--config", str(folder / "cadenza.toml")],
            input="a password of the bench",
            capture_output=True,
            text=True,
            timeout=CLI_S,
            env=dict(os.environ) | self._env,
            check=False,
        )
        if done.returncode != 0:
            raise CannotRun(f"cadenza {' '.join(args[:2])}: {done.stderr.strip()[-300:]}")
        return done.stdout
