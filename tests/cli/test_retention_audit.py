"""cadenza audit retention: a clean service, leaks that are planted, and what is left of the audit itself."""

import contextlib
import gzip
import json
import signal
import sqlite3
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.cli.program import PROGRAM, Done
from tests.environment import environment
from tests.loopback import Good, LoopbackUpstream
from tests.loopback.replies import Request, Step
from tests.postgres import running_postgres
from tests.processes import children
from tests.service import Deployment, Service, wait_until
from tests.service_config import ordinary_spec
from tests.valkey import running_valkey

STORED = {"a note", "header: X-Request-Id", "sign-in: User-Agent", "the address of the account", "the name of a key"}
DELETED = {
    "a note that was replaced",
    "a note that was deleted",
    "a note that a command deleted",
    "an account that was erased",
}
SERVED = ("chat, plain", "chat, tools", "chat, file", "answer")
END_S = 60.0
audits = pytest.mark.slow(reason="an audit sends 180 needles, and searches every place for them")


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


class LeakingUpstream:
    """An upstream that writes what it gets into the log, the store and the data folder of the service."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def steps(self, request: Request) -> Iterable[Step]:
        text = request.json["messages"][-1]["content"]
        with (self._service.folder / "debug.log").open("a") as log:
            log.write(json.dumps({"event": "debug", "text": text}) + "\n")
        (self._service.store.parent / "request.gz").write_bytes(gzip.compress(request.body))
        with contextlib.closing(sqlite3.connect(self._service.store, timeout=END_S)) as store, store:
            store.execute("UPDATE keys SET name = ?", (str(text),))
        return Good().steps(request)


@audits
def test_no_content_stays(audited: Deployment) -> None:
    """On SQLite, nothing is found of 180 needles but what is stored by design, and the report says so."""
    report = audited.folder / "audit.md"
    done = audited.cli("audit", "retention", "--json", "--report", str(report))
    assert done.returncode == 0, done.stdout
    page = report.read_text()
    audit = found(done)
    assert audit["verdict"] == "clean"
    assert audit["hits"] == audit["missing"] == []
    assert set(audit["kept"]) >= STORED | {"search: indexed document"}
    statuses = {sent["name"]: sent["status"] for sent in audit["sent"]}
    assert len(statuses) > 180
    assert {name for name, status in statuses.items() if name.startswith(SERVED) and status != 200} == set()
    assert {200, 303, 400, 401, 402, 403, 404, 409, 413, 415, 429, 502} <= set(statuses.values())
    assert audit["reached"]["model"] > 100
    assert audit["reached"]["trace collector"]
    assert "models.invalid" not in done.stdout
    assert "| chat, plain, whole: user message | 200 |" in page
    assert "Nothing that was sent was found where it must not be." in page


@audits
def test_leaks_of_a_running_service_are_found(
    shared_upstream: LoopbackUpstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Content in the log, a table or a compressed file of the data folder is found, and the account is erased."""
    for name in ("HOME", "TMPDIR"):
        monkeypatch.setenv(name, str(tmp_path))  # those of the machine may have very many files
    with Service(ordinary_spec(shared_upstream.base_url)) as service:
        logs = [f"--log={service.folder / name}" for name in ("process-1.log", "debug.log")]
        options = ("--live", "--yes", "--json", "--url", f"http://127.0.0.1:{service.port}", *logs)
        clean = service.cli("audit", "retention", *options)
        shared_upstream.always(LeakingUpstream(service))
        leaking = service.cli("audit", "retention", *options)
        shared_upstream.reset()
        accounts = json.loads(service.cli("account", "list", "--json").stdout)
    assert clean.returncode == 0, clean.stdout
    assert leaking.returncode == 1
    hits = {(hit["place"].partition(" /")[0], hit["where"], hit["form"]) for hit in found(leaking)["hits"]}
    assert {
        ("log", "debug.log", "plain"),
        ("SQLite tables, every value", "keys.name", "plain"),
        ("folder", "request.gz", "plain in gzip"),
    } <= hits
    names = {hit["needle"] for hit in found(leaking)["hits"]}
    assert "chat, plain, whole: user message" in names
    assert [account["email"] for account in accounts if "audit.invalid" in account["email"]] == []


@audits
def test_an_interrupted_audit_leaves_nothing(tmp_path: Path) -> None:
    """After SIGTERM, the service of the audit has ended, and its folder is removed."""
    variables = environment(TMPDIR=str(tmp_path))
    command = [str(PROGRAM), "audit", "retention"]
    with subprocess.Popen(command, cwd=tmp_path, env=variables, stderr=subprocess.PIPE, text=True) as audit:
        wait_until(
            lambda: any(tmp_path.glob("cadenza-audit-*/kept/logs/serve-1.log")), "the log of the audit's service"
        )
        wait_until(lambda: len(children(audit.pid)) > 0, "the service of the audit")
        started = children(audit.pid)
        audit.send_signal(signal.SIGTERM)
        _, said = audit.communicate(timeout=END_S)
    assert audit.returncode == 130
    assert "Interrupted" in said
    assert started
    assert not any(Path(f"/proc/{pid}").exists() for pid in started)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--log", "a.log"), "belong to --live"),
        (("--live", "--store", "postgresql://a/b"), "--store is not for --live"),
        (("--live",), "add --yes"),
        (("--store", "sqlite:///a.db"), "an empty Postgres database"),
        (("--report", "cadenza.toml"), "exists already"),
        (("--live", "--yes", "--url", "https://a.invalid"), "like http://127.0.0.1:8080"),
        (("--live", "--yes", "--url", "http://127.0.0.1:1"), "No service answers at 127.0.0.1:1"),
    ],
)
def test_what_cannot_be_audited(options: tuple[str, ...], says: str, audited: Deployment) -> None:
    """An audit that cannot be made says what to do, with exit code 2."""
    words = [str(audited.config) if word == "cadenza.toml" else word for word in options]
    done = audited.cli("audit", "retention", *words)
    assert done.returncode == 2
    assert says in done.stderr


@pytest.mark.slow(reason="it starts Postgres, Valkey and three processes of the service")
def test_on_postgres_and_valkey() -> None:
    """Nothing is found, but deleted notes in files of Postgres; all keys in Valkey are removed again."""
    with running_postgres(in_memory=False) as postgres, running_valkey() as valkey, postgres.database() as url:
        spec = ordinary_spec("https://models.invalid/v1")
        with Deployment(spec) as installation:
            shared = f'[shared_state]\nurl = "{valkey.url}"\n'
            installation.config.write_text(spec.toml().replace(spec.store_url, url) + shared)
            done = installation.cli("audit", "retention", "--json")
        assert done.returncode == 0, done.stdout
        audit = found(done)
        assert set(audit["remains"]) <= DELETED
        assert set(audit["kept"]) >= STORED
        assert {"Postgres write-ahead log", "Valkey keys and values"} <= {one["place"] for one in audit["searched"]}
        assert b"db15" not in valkey.command("INFO", "keyspace")
