"""The LiteLLM proxy on Postgres and Redis, with virtual keys that have budgets.

The settings are those that its documentation gives for several instances, with the two that guard budgets best. Its
database client, Prisma, has a native query engine that is in no package registry. Here the same engine runs as
WebAssembly, from npm (bench/peers/prisma), and psql applies the migrations of LiteLLM's package.
"""

import asyncio
import contextlib
import http.client
import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import asyncpg  # type: ignore[import-untyped]
from tests.fleet.ports import free_port
from tests.link import Link
from tests.postgres import OWNER, installed_programs

from bench import backends
from bench.gateways.install import PINS, WORK_DIR, debian_program, pinned_version, python_environment, run
from bench.machine import CannotRun
from bench.money.clients import ChatAddress
from bench.money.deployment import GatewayProcess, GatewayUnderTest, Ledger, MoneyGateway, started
from bench.money.reckon import Billed
from bench.money.script import INPUT_NANO, OUTPUT_NANO

PROCESSES = 3
KEY = "sk-bench-0123456789"
MODEL = "bench"
ENGINE = PINS / "prisma"
CALL_S = 10.0
CONFIG = f"""
model_list:
  - model_name: {MODEL}
    litellm_params:
      model: openai/{MODEL}
      api_base: http://127.0.0.1:{{upstream_port}}/v1
      api_key: bench
      input_cost_per_token: {INPUT_NANO / 1e9:.9f}
      output_cost_per_token: {OUTPUT_NANO / 1e9:.9f}
general_settings:
  master_key: {KEY}
  use_redis_transaction_buffer: true
  fail_closed_budget_enforcement: true
  disable_prisma_schema_update: true
router_settings:
  redis_host: 127.0.0.1
  redis_port: {{redis_port}}
litellm_settings:
  telemetry: false
  cache: true
  cache_params:
    type: redis
    host: 127.0.0.1
    port: {{redis_port}}
    supported_call_types: []
"""
SPEND = 'SELECT token, spend FROM "LiteLLM_VerificationToken"'
LOGS = 'SELECT request_id, api_key, spend, prompt_tokens FROM "LiteLLM_SpendLogs"'


class LiteLLMUnderTest(GatewayUnderTest):
    """Keys are made and blocked over the API; charges are read from the tables."""

    def __init__(self, database_url: str, processes: Sequence[GatewayProcess]) -> None:
        self.processes = processes
        self.address = ChatAddress([process.port for process in processes], MODEL)
        self.settings = {
            "store": "Postgres and Redis",
            "options": "use_redis_transaction_buffer, fail_closed_budget_enforcement; the interval of writes is 10 s",
            "database client": "Prisma, with its query engine 5.17.0 as WebAssembly",
        }
        self._database_url = database_url
        self._secrets: dict[str, str] = {}
        self._wallets: dict[str, str] = {}  # by the hash of the key

    def create(self, wallet: str, budget_nano: int) -> str:
        made = self._call("/key/generate", {"key_alias": wallet, "max_budget": budget_nano / 1e9, "models": [MODEL]})
        self._wallets[made["token"]] = wallet
        self._secrets[wallet] = made["key"]
        return self._secrets[wallet]

    def revoke(self, wallet: str) -> None:
        self._call("/key/block", {"key": self._secrets[wallet]})

    def read(self) -> Ledger:
        return asyncio.run(self._read())

    async def _read(self) -> Ledger:
        connection = await asyncpg.connect(self._database_url)
        try:
            spent = {
                self._wallets[row[0]]: _nano(row[1]) for row in await connection.fetch(SPEND) if row[0] in self._wallets
            }
            billed = [
                Billed(self._wallets[key], id_, prompt_tokens, _nano(spend))
                for id_, key, spend, prompt_tokens in await connection.fetch(LOGS)
                if key in self._wallets
            ]
        finally:
            await connection.close()
        return Ledger(spent, billed)

    def _call(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Of the first process that answers."""
        seen = ""
        for process in self.processes:
            connection = http.client.HTTPConnection("127.0.0.1", process.port, timeout=CALL_S)
            try:
                headers = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}
                connection.request("POST", path, json.dumps(body), headers)
                response = connection.getresponse()
                seen = response.read().decode()
                if response.status == 200:
                    answer: dict[str, Any] = json.loads(seen)
                    return answer
            except (OSError, http.client.HTTPException) as error:
                seen = type(error).__name__
            finally:
                connection.close()
        raise CannotRun(f"LiteLLM did not answer {path}: {seen[-300:]}")


class LiteLLMOnPostgres(MoneyGateway):
    """Instances of one worker each."""

    name = "litellm"
    settle_s = 45.0  # spend goes from memory to Redis and from there to Postgres, every 10 to 15 seconds each
    promises = (
        "Its documentation says that each instance accumulates spend in memory and writes it to a queue in Redis,",
        "from which one instance writes it to Postgres. It promises nothing about spend in a killed instance's memory.",
        "With Redis, instances share their counters and the invalidation of keys.",
    )

    def __init__(self, processes: int = PROCESSES) -> None:
        self._processes = processes

    def install(self) -> str:
        site_packages = next((python_environment("litellm") / ".." / "lib").resolve().glob("python3*/site-packages"))
        engine = install_engine()
        stamp = WORK_DIR / "litellm" / "prisma-client.txt"
        if not stamp.exists():
            generate_client(engine, site_packages)
            stamp.write_text("generated\n")
        return pinned_version("litellm")

    @contextlib.contextmanager
    def running(self, folder: Path, upstream_port: int) -> Iterator[GatewayUnderTest]:
        folder.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as stack:
            socket_path = stack.enter_context(backends.postgres())
            redis_port = stack.enter_context(backends.valkey(folder))
            migrate(socket_path)
            config = folder / "litellm.yaml"
            config.write_text(CONFIG.format(upstream_port=upstream_port, redis_port=redis_port))
            processes = []
            for number in range(self._processes):
                link = stack.enter_context(Link(socket_path).running())
                processes.append(make_process(folder / str(number), config, link))
            stack.enter_context(started(processes))
            yield LiteLLMUnderTest(backends.url_of(socket_path), processes)


def make_process(folder: Path, config: Path, link: Link) -> GatewayProcess:
    folder.mkdir()
    process = GatewayProcess(folder, free_port(), "/health/readiness", link)
    program = python_environment("litellm") / "litellm"
    listening = ["--host", "127.0.0.1", "--port", str(process.port), "--num_workers", "1"]
    engine = WORK_DIR / "prisma"
    process.configure(
        [program, "--config", config, *listening],
        {
            "DATABASE_URL": f"postgresql://{OWNER}@127.0.0.1:{link.port}/postgres",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "LITELLM_MODE": "PRODUCTION",
            "LITELLM_SALT_KEY": "sk-bench-salt",
            "PRISMA_QUERY_ENGINE_BINARY": str(engine / "query-engine"),
            "PRISMA_BINARY_CACHE_DIR": str(engine),
            "PATH": f"{program.parent}:{os.environ['PATH']}",
        },
    )
    return process


def install_engine() -> Path:
    """The folder with Prisma's engine and command line, from npm."""
    debian_program("node", "nodejs")
    npm, place = debian_program("npm", "npm"), WORK_DIR / "prisma"
    pins, stamp = (ENGINE / "package-lock.json").read_text(), place / "pins.txt"
    shutil.copytree(ENGINE, place, dirs_exist_ok=True)
    if not stamp.exists() or stamp.read_text() != pins:
        run([npm, "ci", "--prefix", str(place), "--ignore-scripts", "--silent", "--no-fund", "--no-audit"], "Prisma")
        stamp.write_text(pins)
    return place


def generate_client(engine: Path, site_packages: Path) -> None:
    """Write LiteLLM's database client from its schema, for this platform alone."""
    lines = (site_packages / "litellm" / "proxy" / "schema.prisma").read_text().splitlines()
    schema = engine / "schema.prisma"
    schema.write_text("\n".join(line for line in lines if "binaryTargets" not in line))
    stand_in = str(engine / "query-engine")
    engines = dict.fromkeys(("QUERY_ENGINE_BINARY", "QUERY_ENGINE_LIBRARY", "SCHEMA_ENGINE_BINARY"), stand_in)
    env = {f"PRISMA_{name}": value for name, value in engines.items()}
    env |= {"PATH": f"{python_environment('litellm')}:{os.environ['PATH']}", "CHECKPOINT_DISABLE": "1"}
    command = ["node", str(engine / "node_modules/prisma/build/index.js"), "generate", "--schema", str(schema)]
    done = subprocess.run(command, capture_output=True, text=True, env=dict(os.environ) | env, check=False)
    if done.returncode != 0:
        raise CannotRun(f"could not generate LiteLLM's database client: {(done.stderr or done.stdout)[-300:]}")


def migrate(socket_path: Path) -> None:
    packages = (python_environment("litellm") / ".." / "lib").resolve()
    files = sorted(packages.glob("python3*/site-packages/litellm_proxy_extras/migrations/*/migration.sql"))
    programs = installed_programs()
    assert programs
    command = [str(programs / "psql"), "-h", str(socket_path.parent), "-U", OWNER, "-q", "-v", "ON_ERROR_STOP=1"]
    for file in files:
        command += ["-f", str(file)]
    done = subprocess.run([*command, "postgres"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise CannotRun(f"could not apply LiteLLM's migrations: {done.stderr[-300:]}")


def _nano(dollars: float) -> int:
    return round(dollars * 1e9)
