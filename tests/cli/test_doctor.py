"""cadenza doctor: what it finds, what it advises, and its exit code. The provider is a real server on loopback."""

import json
from pathlib import Path
from typing import Any

from cadenza.config import load_settings
from cadenza.config.class_records import resolve_classes
from cadenza.core.faults import FaultKind
from cadenza.core.records import Route
from cadenza.store.store import Store
from tests.class_switch import switch
from tests.cli.program import Done, run_here
from tests.loopback import Json, LoopbackUpstream, Status
from tests.migrated import copy_migrated_store, run_aside, with_store
from tests.service import refusing_address
from tests.trial_upstream import Provider, chats
from tests.valkey import running_valkey

FIELDS = ["check", "state", "found", "todo"]


def test_healthy(tmp_path: Path, upstream: LoopbackUpstream) -> None:
    """When all is well, doctor says so for each part, names the model and exits with 0."""
    upstream.always(_models("large", "small"))
    _configure(tmp_path, upstream.base_url)
    done = run_here(tmp_path, "doctor")
    assert done.returncode == 0, done.stderr
    words = [line.split()[:2] for line in done.stdout.splitlines() if line.startswith("ok")]
    assert words == [
        ["ok", part]
        for part in (
            "program",
            "config",
            "store",
            "shared",
            "region",
            "metrics",
            "site",
            "search",
            "kept",
            "retention",
            "service",
            "route",
        )
    ]
    assert "forte -> acme: large" in done.stdout
    assert upstream.wait_for_request().path == "/v1/models"


def test_each_model_is_asked_once(tmp_path: Path, upstream: LoopbackUpstream) -> None:
    """One that serves several classes too; with --provider, the models of other providers are not asked."""
    upstream.always(Provider())
    _configure(tmp_path, upstream.base_url)
    with (tmp_path / "cadenza.toml").open("a") as config:
        for class_id, model in (("mezzo", "large"), ("fortissimo", "huge")):
            config.write(f'\n[[classes.{class_id}.routes]]\nprovider = "acme"\nmodel = "{model}"\n')
        config.write(f'[providers.other]\nkind = "openai"\nbase_url = "{upstream.base_url}"\nretention = "zero"\n')
        config.write('[[classes.mezzo.routes]]\nprovider = "other"\nmodel = "tiny"\norder = 1\n')
    done = run_here(tmp_path, "doctor", "--try", "--provider", "acme", "--json")
    found = [(one["provider"], one["model"], one["found"]) for one in json.loads(done.stdout) if "model" in one]
    assert found == [("acme", "large", "answers"), ("acme", "huge", "answers")]
    assert [(body["model"], body["max_tokens"]) for body in chats(upstream.requests)] == [("large", 1), ("huge", 1)]


def test_a_class_that_the_store_decides_about(tmp_path: Path, upstream: LoopbackUpstream) -> None:
    """The version is shown, and that the routes of the config are not used; a provider that is gone is a fault."""
    upstream.always(_models("large", "candidate"))
    _configure(tmp_path, upstream.base_url)
    folder = tmp_path / "data"
    folder.mkdir()
    copy_migrated_store(folder / "cadenza.db")
    settings = load_settings(str(tmp_path / "cadenza.toml"), {}, tmp_path)

    async def promote(store: Store) -> None:
        await resolve_classes(store, settings)
        await switch(store, route=Route("acme", "candidate", 1000, 100))

    run_aside(lambda: with_store(settings.store.url, promote))
    checks = _json(run_here(tmp_path, "doctor", "--json"), code=0)
    assert [check["found"].partition(" of the config")[0] for check in checks if check["check"] == "class"] == [
        f"forte: version 2 of the store is served; the routes in line {settings.classes['forte'].pinned_at}"
    ]
    [route] = [check["found"] for check in checks if check["check"] == "route"]
    assert route.startswith("forte -> acme: candidate")
    config = tmp_path / "cadenza.toml"
    config.write_text(config.read_text().replace("acme", "other"))
    [fault] = _unwell(_json(run_here(tmp_path, "doctor", "--json"), code=1))
    assert "needs the provider 'acme'" in fault["found"]


def test_shared_state_in_valkey(tmp_path: Path, upstream: LoopbackUpstream) -> None:
    """A server that answers is shown with its version; a wrong password and a missing server are faults with advice."""
    upstream.always(_models("large"))
    with running_valkey("--requirepass", "r1ght") as valkey:
        for password, state, words in (("r1ght", "ok", "answers in"), ("wr0ng", "fault", "WRONGPASS")):
            _configure(tmp_path, upstream.base_url)
            with (tmp_path / "cadenza.toml").open("a") as config:
                config.write(f'\n[shared_state]\nurl = "unix://:{password}@{valkey.socket}"\n')
            done = run_here(tmp_path, "doctor", "--json")
            (check,) = (one for one in _json(done, code=int(state == "fault")) if one["check"] == "shared")
            assert check["state"] == state
            assert words in check["found"]
            assert password not in done.stdout + done.stderr
    (check,) = (one for one in _json(run_here(tmp_path, "doctor", "--json"), code=1) if one["check"] == "shared")
    assert (check["found"][:23], check["todo"][:8]) == ("Valkey does not answer:", "Start it")


def test_unreachable_provider(tmp_path: Path) -> None:
    """A provider that does not answer is a fault of its route, with advice."""
    with refusing_address() as address:
        _configure(tmp_path, address)
        (fault,) = _unwell(_json(run_here(tmp_path, "doctor", "--json"), code=1))
    assert (fault["check"], fault["state"]) == ("route", "fault")
    assert fault["found"] == "forte -> acme: large: it refuses connections (refused)"
    assert fault["todo"] == FaultKind.REFUSED.advice


def test_provider_that_refuses_the_key(tmp_path: Path, upstream: LoopbackUpstream) -> None:
    """A provider that answers with an error is a fault, with its status."""
    upstream.always(Status(401))
    _configure(tmp_path, upstream.base_url)
    (fault,) = _unwell(_json(run_here(tmp_path, "doctor", "--json"), code=1))
    assert "answers 401" in fault["found"]


def test_model_that_the_provider_does_not_list(tmp_path: Path, upstream: LoopbackUpstream) -> None:
    """A model that the provider does not list is a warning with the listed ones: it may still work."""
    upstream.always(_models("huge", "small"))
    _configure(tmp_path, upstream.base_url)
    (warning,) = _unwell(_json(run_here(tmp_path, "doctor", "--json"), code=0))
    assert (warning["check"], warning["state"]) == ("route", "warning")
    assert "large: the provider does not list this model" in warning["found"]
    assert "huge, small" in warning["todo"]


def test_missing_secret(tmp_path: Path, upstream: LoopbackUpstream) -> None:
    """A provider key that is missing from the environment is a fault that names the variable."""
    upstream.always(_models("large"))
    _configure(tmp_path, upstream.base_url, 'api_key_env = "ACME_TEST_KEY"')
    (fault,) = _unwell(_json(run_here(tmp_path, "doctor", "--json"), code=1))
    assert fault["check"] == "secrets"
    assert "ACME_TEST_KEY is unset" in fault["found"]


def _configure(folder: Path, base_url: str, *more: str) -> None:
    lines = [
        "[server]",
        "port = 1",  # where no other service answers
        "[providers.acme]",
        'kind = "openai"',
        f'base_url = "{base_url}"',
        'retention = "zero"',
        *more,
        "[[classes.forte.routes]]",
        'provider = "acme"',
        'model = "large"',
    ]
    (folder / "cadenza.toml").write_text("\n".join(lines))


def _models(*names: str) -> Json:
    return Json({"object": "list", "data": [{"id": name, "object": "model"} for name in names]})


def _json(done: Done, code: int) -> list[dict[str, Any]]:
    assert done.returncode == code, done.stdout + done.stderr
    checks: list[dict[str, Any]] = json.loads(done.stdout)
    assert all(list(check) == FIELDS for check in checks)
    return checks


def _unwell(checks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [check for check in checks if check["state"] != "ok"]
