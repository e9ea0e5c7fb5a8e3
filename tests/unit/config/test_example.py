"""The writer of config files: the example has every key, and what is written is read as it was meant."""

import tomllib
from pathlib import Path
from typing import Any

import pytest
from docs.writers.settings import example_config

from cadenza.config import load_settings
from cadenza.config.reader import keys_of
from cadenza.config.settings import ConfigFile
from cadenza.config.write import Off, write_config
from cadenza.core.config_keys import ConfigTable


def declared_keys(section: type[ConfigTable]) -> set[str]:
    keys = keys_of(section)
    return set(keys).union(*(declared_keys(key.section) for key in keys.values() if key.section))


def test_the_example_has_every_key_and_starts(tmp_path: Path) -> None:
    """Each declared key is in the file, in a comment at least, and the file is accepted."""
    text = example_config()
    lines = [line for line in text.splitlines() if line]
    words = {line.strip("#[] ").split(" = ")[0].split(" ")[0].strip("]") for line in lines}
    names = words | {part for word in words for part in word.split(".")}
    assert declared_keys(ConfigFile) - names == set()
    (tmp_path / "cadenza.toml").write_text(text)
    environ = {"STRIPE_SECRET_KEY": "x", "STRIPE_WEBHOOK_SECRET": "x"}
    assert load_settings(None, environ, tmp_path).missing_secrets == ()


def test_there_are_fewer_than_110_keys() -> None:
    """Each is declared once; a setting that nobody would change is a constant."""

    def sections(section: type[ConfigTable]) -> set[type[ConfigTable]]:
        nested = {key.section for key in keys_of(section).values() if key.section}
        return nested.union(*map(sections, nested))

    def own(section: type[ConfigTable]) -> set[str]:
        inherited = {name for base in section.__bases__ if base is not ConfigTable for name in keys_of(base)}
        return {name for name, key in keys_of(section).items() if not key.section and name not in inherited}

    assert sum(len(own(section)) for section in sections(ConfigFile)) < 110


def test_every_key_has_a_sentence_and_a_rule() -> None:
    """What a key means and what it may be are in its declaration, in one line without a full stop."""

    def check(section: type[ConfigTable]) -> None:
        for key in keys_of(section).values():
            assert key.sentence.strip(".") == key.sentence != "", (section, key.name)
            assert key.section or (key.check and key.check.rule), (section, key.name)
            if key.section:
                check(key.section)

    check(ConfigFile)


@pytest.mark.parametrize(
    "tables",
    [
        {"character": {"text": 'quotes " and \\ and\nlines, € and \x7f'}, "server": {"trusted_proxies": ["x", "y"]}},
        pytest.param(
            {"grounding": {"search": False, "memory": True}, "observe": {"sample": 1.5}, "payments": {}},
            marks=pytest.mark.parts(reason="their tables"),
        ),
        {"providers": {"f.g": {"kind": "openai"}}, "classes": {"forte": {"routes": [{"fields": {"e": {"x": 2}}}, {}]}}},
        {"classes": {"forte": {"routes": [{"timeouts": {"idle_s": 3}}], "gate": {}}}},
    ],
)
def test_toml_is_read_as_it_was_written(tables: dict[str, Any]) -> None:
    """Strings, lists, tables and lists of tables survive."""
    assert tomllib.loads(write_config(tables)) == tables


def test_a_value_that_is_off_is_a_comment() -> None:
    """It is shown with its sentence, and not read."""
    text = write_config({"server": {"port": Off(80)}})
    assert "# port = 80" in text
    assert tomllib.loads(text) == {"server": {}}
