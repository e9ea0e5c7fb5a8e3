"""The config of an audited service, made from the user's own."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from cadenza.audit.needles import Needles
from cadenza.audit.private_config import AuditedPlaces, PrivateConfig, make_config, write_toml
from cadenza.config import Settings, load_settings

PAGE = Path(__file__).parents[3] / "docs" / "operating.md"
UPSTREAM = "http://127.0.0.1:9"
OUTSIDE = re.compile(r"https?://(?!127\.0\.0\.1:9\b)[^\s\"]+")


def audited(folder: Path, raw: dict[str, Any]) -> tuple[PrivateConfig, Settings]:
    """The config of the audited service, and the settings that it gives."""
    inputs = folder / "inputs"
    inputs.mkdir()
    source = folder / "cadenza.toml"
    source.write_text(write_toml(raw))
    places = AuditedPlaces(UPSTREAM, f"sqlite:///{folder}/audit.db", "memory://", inputs, folder / "index.db")
    config = make_config(raw, load_settings(str(source), {}, folder), places, Needles())
    own = inputs / "cadenza.toml"
    own.write_text(config.toml)
    settings = load_settings(str(own), config.variables, inputs)
    settings.require_complete()
    return config, settings


def test_every_setting_is_kept_or_replaced(tmp_path: Path) -> None:
    """The file with every setting becomes one that starts without any secret and asks nobody outside."""
    found = re.search(r"This file shows every setting:\n\n```toml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found
    raw = tomllib.loads(found[1])
    config, settings = audited(tmp_path, raw)
    assert OUTSIDE.findall(config.toml) == []
    assert (settings.mail, settings.payments) == (None, None)
    assert {one.base_url for one in settings.providers.values()} == {f"{UPSTREAM}/v1"}
    assert settings.classes["forte"].routes[0].model == "acme-large"
    assert settings.grounding.search.url == UPSTREAM
    assert settings.grounding.search.price_nano
    assert settings.limits.revoked_streams == "end"


def test_dialects_are_kept(tmp_path: Path) -> None:
    """A provider that is known by its host is spoken to in its dialect, although the host is another one."""
    acme = {"kind": "openai", "base_url": "https://api.mistral.ai/v1", "retention": "zero", "api_key_env": "KEY"}
    raw = {"providers": {"acme": acme}, "classes": {"forte": {"routes": [{"provider": "acme", "model": "large"}]}}}
    config, settings = audited(tmp_path, raw)
    assert settings.providers["acme"].dialect == "mistral"
    assert settings.providers["acme"].api_key == config.variables["KEY"]
    assert [one.routes[0].provider for one in settings.classes.values()] == ["built-in", "acme", "built-in"]


def test_the_built_in_default(tmp_path: Path) -> None:
    """Without a config file the built-in upstream answers for the embedded model, and the audit says so."""
    config, settings = audited(tmp_path, {})
    assert {one.kind for one in settings.providers.values()} == {"openai"}
    assert any("embedded model" in note for note in config.notes)


@pytest.mark.parametrize(
    "tables",
    [
        {"a": {"text": 'quotes " and \\ and\nlines, € and \x7f', "list": ["x", "y"], "yes": True, "n": 1.5}},
        {"a": {"b": [{"c": 1, "d": {"e": 2}}, {"c": 3}]}, "f.g": {"empty": []}},
    ],
)
def test_toml_is_read_as_it_was_written(tables: dict[str, Any]) -> None:
    """Strings, lists, tables and arrays of tables survive."""
    assert tomllib.loads(write_toml(tables)) == tables
