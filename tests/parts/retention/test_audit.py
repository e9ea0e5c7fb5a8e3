"""cadenza retention audit: what is stored by design, leaks that are planted, and what is left of the audit itself."""

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.cli.program import COMMAND_S, PROGRAM, Done
from tests.environment import environment
from tests.forked import run_program
from tests.postgres import running_postgres
from tests.processes import children
from tests.service import Deployment, wait_until
from tests.service_config import ordinary_spec
from tests.valkey import running_valkey

STORED = {"a note", "header: X-Request-Id", "sign-in: User-Agent", "the address of the account", "the name of a key"}
DELETED = {
    "a note that was replaced",
    "a note that was deleted",
    "a note that a command deleted",
    "a note of an account that was erased",
    "an account that was erased",
}
ANSWERED = tuple(f"{name}, {mode}: a model" for name in ("messages", "responses") for mode in ("whole", "stream"))
SERVED = ("chat, plain", "chat, tools", "chat, file", "answer", *ANSWERED)
END_S = 60.0
PLANTED = {"header: Referer", "page: query", "a session cookie", "the API key"}
# What the audited service loads first: its HTTP parser writes two of the requests to its log, folders and store.
LEAK = """
import base64, gzip, os, sqlite3, sys
import httptools

class LeakingParser(httptools.HttpRequestParser):
    def feed_data(self, data):
        data = bytes(data)
        if "cadenza-retention-" in os.environ.get("TMPDIR", "") and (b"pages.invalid" in data or b"&q=" in data):
            print(base64.b64encode(data).decode(), file=sys.stderr, flush=True)
            with open(os.environ["TMPDIR"] + "/requests.gz", "ab") as file:
                file.write(gzip.compress(data))
            with open("requests.utf16", "a", encoding="utf-16-le", errors="replace") as file:
                file.write(data.decode(errors="replace"))
            with sqlite3.connect("../store/cadenza.db", timeout=60) as store:
                store.execute("UPDATE keys SET name = name || ?", (data.decode(errors="replace"),))
        super().feed_data(data)

httptools.HttpRequestParser = LeakingParser
"""
audits = pytest.mark.slow(reason="an audit sends 350 canaries, and searches every place for them")


def found(done: Done) -> dict[str, Any]:
    [audit] = json.loads(done.stdout)
    result: dict[str, Any] = audit
    return result


@pytest.fixture(scope="module")
def audited() -> Iterator[Deployment]:
    spec = ordinary_spec("https://models.invalid/v1")
    traced = f'{spec.more_toml}[observe]\notlp_url = "https://traces.invalid"\n'
    with Deployment(msgspec.structs.replace(spec, more_toml=traced)) as installation:
        yield installation


@audits
def test_leaks_are_found_and_nothing_else(audited: Deployment, tmp_path: Path) -> None:
    """On SQLite, nothing is found of 350 canaries but what is stored by design, and two that leak, in each form."""
    (tmp_path / "sitecustomize.py").write_text(LEAK)
    command = [str(PROGRAM), "audit", "retention", "--json", "--config", str(audited.config)]  # the alias
    done = run_program(command, tmp_path, environment(PYTHONPATH=str(tmp_path)), limit_s=COMMAND_S, is_typed=True)
    assert done.returncode == 1, done.stderr
    audit = found(done)
    hits = [(place, hit) for place, hits in audit["found"].items() for hit in hits]
    assert {hit["canary"] for _, hit in hits if hit["form"] != "base64"} == PLANTED  # whose last bits can be another's
    assert {hit["form"] for place, hit in hits if place == "log"} == {"base64"}
    assert {
        ("log", "serve-1.log", "base64"),
        ("tmp folder", "requests.gz", "plain in gzip"),
        ("working folder", "requests.utf16", "UTF-16"),
        ("SQLite tables, every value", "keys.name", "plain"),
    } <= {(place, hit["where"], hit["form"]) for place, hit in hits}
    assert audit["missing"] == []
    assert set(audit["stored"]) >= STORED
    statuses = audit["sent"]
    assert len(statuses) > 330
    assert {name for name, status in statuses.items() if name.startswith(SERVED) and status != 200} == set()
    assert {200, 303, 400, 401, 402, 403, 404, 409, 413, 415, 429, 502} <= set(statuses.values())
    assert audit["received"]["model"] > 200
    assert audit["received"]["trace collector"]
    assert "models.invalid" not in done.stdout


@audits
def test_an_interrupted_audit_leaves_nothing(tmp_path: Path) -> None:
    """After SIGTERM, the service of the audit has ended, and its folder is removed."""
    variables = environment(TMPDIR=str(tmp_path))
    command = [str(PROGRAM), "retention", "audit"]
    with subprocess.Popen(command, cwd=tmp_path, env=variables, stderr=subprocess.PIPE, text=True) as audit:
        logs = "cadenza-retention-*/kept/logs/serve-1.log"
        wait_until(lambda: any(tmp_path.glob(logs)), "the log of the audit's service")
        wait_until(lambda: len(children(audit.pid)) > 0, "the service of the audit")
        started = children(audit.pid)
        audit.send_signal(signal.SIGTERM)
        _, said = audit.communicate(timeout=END_S)
    assert audit.returncode == 130
    assert "Interrupted" in said
    assert started
    assert not any(Path(f"/proc/{pid}").exists() for pid in started)
    assert list(tmp_path.iterdir()) == []


def test_a_config_that_cannot_be_audited(tmp_path: Path) -> None:
    """An audit that cannot be made says why, with exit code 2."""
    with Deployment(ordinary_spec("https://models.invalid/v1")) as installation:
        installation.config.write_text('[store]\nurl = "postgresql://127.0.0.1:1/a"\n')
        done = installation.cli("retention", "audit")
    assert done.returncode == 2
    assert "the audit could not be made: Postgres cannot be reached" in done.stderr


@pytest.mark.slow(reason="it starts Postgres, Valkey and three processes of the service")
def test_on_postgres_and_valkey() -> None:
    """Nothing is found, but deleted notes in files of Postgres; all keys in Valkey are removed again."""
    with running_postgres(in_memory=False) as postgres, running_valkey() as valkey, postgres.database() as url:
        spec = ordinary_spec("https://models.invalid/v1")
        with Deployment(spec) as installation:
            shared = f'[shared_state]\nurl = "{valkey.url}"\n'
            installation.config.write_text(spec.toml().replace(spec.store_url, url) + shared)
            done = installation.cli("retention", "audit", "--json")
        assert done.returncode == 0, done.stdout
        audit = found(done)
        assert (audit["verdict"], audit["found"], audit["missing"]) == ("clean", {}, [])
        assert set(audit["remains"]) <= DELETED
        assert set(audit["stored"]) >= STORED
        assert {"Postgres write-ahead log", "Valkey keys and values"} <= set(audit["searched"])
        assert b"db15" not in valkey.command("INFO", "keyspace")
