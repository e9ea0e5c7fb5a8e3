"""cadenza class list | reload, without a store."""

import json
from pathlib import Path
from typing import Any

from tests.cli.program import run_here
from tests.service_config import RouteSpec, ServiceSpec

SPEC = ServiceSpec(
    providers={"acme": "http://127.0.0.1:9/v1", "backup": "http://127.0.0.1:10/v1"},
    routes={
        "fortissimo": [RouteSpec("acme", "acme-huge")],
        "forte": [
            RouteSpec("backup", "spare-large", order=2, continues=True),
            RouteSpec("acme", "acme-large", order=1, weight=3),
            RouteSpec("acme", "acme-medium", order=1),
        ],
    },
)


def config_in(folder: Path, toml: str) -> str:
    path = folder / "cadenza.toml"
    path.write_text(toml)
    return str(path)


def row(class_id: str, spec: RouteSpec) -> dict[str, Any]:
    return {
        "class": class_id,
        "version": None,
        "order": spec.order,
        "weight": spec.weight,
        "provider": spec.provider,
        "model": spec.model,
        "context_tokens": 1_000_000,
        "max_output_tokens": 131_072,
        "continue": spec.continues,
    }


def test_list_as_json(tmp_path: Path) -> None:
    """One array has a row for every route, in the order in which each class tries them."""
    done = run_here(tmp_path, "class", "list", "--json", "--config", config_in(tmp_path, SPEC.toml()))
    assert done.returncode == 0
    rows = json.loads(done.stdout)
    later, heavy, equal = SPEC.routes["forte"]
    assert [one for one in rows if one["class"] == "forte"] == [row("forte", spec) for spec in (heavy, equal, later)]
    assert [one for one in rows if one["class"] == "fortissimo"] == [row("fortissimo", SPEC.routes["fortissimo"][0])]
    assert len(rows) == 4


def test_list_as_a_table(tmp_path: Path) -> None:
    """A header, then a line for every route; nothing is cut off."""
    done = run_here(tmp_path, "class", "list", "--config", config_in(tmp_path, SPEC.toml()))
    names, *lines = done.stdout.splitlines()
    assert names.split() == list(row("forte", SPEC.routes["forte"][0]))
    assert len(lines) == 4
    assert ["forte", "–", "2", "1", "backup", "spare-large", "1000000", "131072", "True"] in [
        line.split() for line in lines
    ]


def test_list_of_the_built_in_default(tmp_path: Path) -> None:
    """Without a config file the embedded model serves every class."""
    rows = json.loads(run_here(tmp_path, "class", "list", "--json").stdout)
    assert [one["class"] for one in rows] == ["mezzo", "forte", "fortissimo"]
    assert {one["provider"] for one in rows} == {"local"}


def test_reload_without_a_server(tmp_path: Path) -> None:
    """Reload succeeds while no server runs: the next start reads the file anyway."""
    done = run_here(tmp_path, "class", "reload", "--config", config_in(tmp_path, SPEC.toml()))
    assert done.returncode == 0
    assert done.stdout == ""
    assert "before its next request" in done.stderr


def test_reload_of_a_file_with_mistakes(tmp_path: Path) -> None:
    """All mistakes are reported with the nearest known name, and nothing is announced: no store is created."""
    toml = SPEC.toml().replace("weight = 3", "weigth = 3").replace('provider = "backup"', 'provider = "bakcup"')
    done = run_here(tmp_path, "class", "reload", "--config", config_in(tmp_path, toml))
    assert done.returncode == 1
    assert "weigth" in done.stderr
    assert '"weight"' in done.stderr
    assert '"backup"' in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "data").exists()


def test_reload_without_a_secret(tmp_path: Path) -> None:
    """A provider key that is missing from the environment is refused, with the name of its variable."""
    toml = SPEC.toml().replace('/v1"\nretention', '/v1"\napi_key_env = "ACME_TEST_KEY"\nretention', 1)
    done = run_here(tmp_path, "class", "reload", "--config", config_in(tmp_path, toml))
    assert done.returncode == 1
    assert "ACME_TEST_KEY" in done.stderr
