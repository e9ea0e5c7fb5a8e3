"""The config of an audited service, made from the user's own."""

import re
import tomllib
from pathlib import Path
from typing import Any

from docs.writers.settings import example_config

from cadenza.config import Settings, load_settings
from cadenza.config.write import write_config
from cadenza.parts.grounding.settings import GroundingSettings
from cadenza.parts.retention.canaries import CanarySet
from cadenza.parts.retention.config import PrivateConfig

UPSTREAM = "http://127.0.0.1:9"
OUTSIDE = re.compile(r"https?://(?!127\.0\.0\.1:9\b)[^\s\"]+")


def audited(folder: Path, raw: dict[str, Any]) -> tuple[PrivateConfig, str, Settings]:
    """The config of the audited service, its file, and the settings that it gives."""
    (folder / "inputs").mkdir()
    source, own = folder / "cadenza.toml", folder / "inputs" / "cadenza.toml"
    source.write_text(write_config(raw))
    config = PrivateConfig(raw, load_settings(str(source), {}, folder), CanarySet())
    own.write_text(write_config(config.tables(UPSTREAM, f"sqlite:///{folder}/audit.db", "memory://")))
    settings = load_settings(str(own), config.variables, own.parent)
    settings.require_complete()
    return config, own.read_text(), settings


def test_every_setting_is_kept_or_replaced(tmp_path: Path) -> None:
    """The file with every setting becomes one that starts without any secret and asks nobody outside."""
    raw = tomllib.loads(example_config())
    _, toml, settings = audited(tmp_path, raw)
    assert OUTSIDE.findall(toml) == []
    assert settings.tables.keys() == {"observe", "grounding", "platform"}
    assert {one.base_url for one in settings.providers.values()} == {f"{UPSTREAM}/v1"}
    assert settings.classes["forte"].routes[0].model == "acme-large"
    grounding = settings.of(GroundingSettings)
    assert grounding
    assert grounding.search.url == UPSTREAM
    assert grounding.search.price_nano


def test_dialects_are_kept(tmp_path: Path) -> None:
    """A provider that is known by its host is spoken to in its dialect, although the host is another one."""
    acme = {"kind": "openai", "base_url": "https://api.mistral.ai/v1", "retention": "zero", "api_key_env": "KEY"}
    classes = {"forte": {"routes": [{"provider": "acme", "model": "large"}]}}
    raw = {"providers": {"acme": acme}, "classes": classes, "shared_state": {"url": "valkey://elsewhere"}}
    config, _, settings = audited(tmp_path, raw)
    assert settings.providers["acme"].dialect == "mistral"
    assert settings.shared_state.url == "memory://"
    assert settings.providers["acme"].api_key == config.variables["KEY"]
    assert [one.routes[0].provider for one in settings.classes.values()] == ["built-in", "acme", "built-in"]


def test_the_built_in_default(tmp_path: Path) -> None:
    """Without a config file the built-in upstream answers for the embedded model, and the audit says so."""
    config, _, settings = audited(tmp_path, {})
    assert {one.kind for one in settings.providers.values()} == {"openai"}
    assert any("no model runs on this machine" in note for note in config.notes)
