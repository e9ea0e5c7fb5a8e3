"""cadenza connect: what it prints, what it writes into the files of clients, and that no unused key stays."""

import json
import re
import stat
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cadenza.cli import connect
from cadenza.cli.settings_files import merge_settings
from cadenza.control.client_settings import CLIENTS, SCOPES
from cadenza.control.keys import KeyOrder, create_key
from cadenza.store.tables.keys import OwnedKey
from cadenza.terminal.configured import load_config, with_owner
from cadenza.terminal.console import now_ms
from tests.cli.conftest import EMAIL, OTHER, PASSWORD
from tests.cli.program import Done, run_here

URL = "https://chat.example.org"
KEY = re.compile(r"sk-cdz-\w+")
READ = {"json": json.loads, "toml": tomllib.loads, "yaml": yaml.safe_load, "yml": yaml.safe_load}
IN_FILES = {name: client for name, client in CLIENTS.items() if client.file}
OLD = {
    "json": '{"theme": "dark", "env": {"EDITOR": "vi"}, "größe": [1]}',
    "toml": '# mine\r\napproval_policy = "never"\r\n[tools]\r\nsearch = true\r\n[model_providers.other]\r\nname = "x"',
    "yaml": "# mine\nrules:\n- be brief\n",
    "yml": "---\n# model: other\nauto-commits: false",
}
TAKEN = [
    (
        "claude",
        '{"env": {"ANTHROPIC_AUTH_TOKEN": "x", "ANTHROPIC_MODEL": 1}}',
        "env.ANTHROPIC_AUTH_TOKEN, env.ANTHROPIC_M",
    ),
    ("claude", '{"env": "x"}', "already has env."),
    ("claude", "{} // mine", "not a plain JSON object"),
    ("claude", "[]", "not a plain JSON object"),
    ("codex", 'model = "other"', "already has model."),
    ("codex", 'model = "auto"', "some of these settings"),
    ("codex", '[model_providers.cadenza]\nname = "Cadenza"', "some of these settings"),
    ("codex", "model =", "not valid TOML"),
    ("continue", "name: Mine\nmodels: []", "already has name, models."),
    ("aider", "'model' : other", "already has model."),
    ("aider", "{model: other}", "not a plain YAML mapping"),
    ("aider", b"\xff", "not UTF-8"),
]


def connect_to(folder: Path, *args: str) -> Done:
    return run_here(folder, "connect", *args, HOME=str(folder / "home"))


def keys_of(folder: Path) -> list[dict[str, Any]]:
    """The keys that the command created, newest last."""
    listed: list[dict[str, Any]] = json.loads(run_here(folder, "key", "list", "--account", EMAIL, "--json").stdout)
    return [key for key in listed if " on " in key["name"]]


def leaves(value: object) -> Iterator[object]:
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    if parts is None:
        yield value
    else:
        for part in parts:
            yield from leaves(part)


@pytest.mark.parametrize("name", CLIENTS)
def test_settings_are_printed_with_a_new_key(furnished: Path, name: str) -> None:
    """Standard output has the settings and nothing else, with the address, the class and a key that may chat."""
    client = CLIENTS[name]
    done = connect_to(furnished, name, "--url", f"{URL}/v1/", "--class", "mezzo")
    assert done.returncode == 0, done.stderr
    [secret] = KEY.findall(done.stdout)
    assert done.stdout == client.fill(URL, secret, "mezzo")
    [key] = keys_of(furnished)
    assert secret.startswith(key["prefix"])
    assert key["name"].startswith(f"{name} on ")
    assert key["scopes"] == [*SCOPES]
    assert secret not in done.stderr
    assert f"cadenza key revoke {key['id']}" in done.stderr
    assert client.file in done.stderr


@pytest.mark.parametrize("name", IN_FILES)
def test_settings_are_what_their_format_says(name: str) -> None:
    """What is filled in is read back from the file as it was, by a parser of its format."""
    client = CLIENTS[name]
    read = READ[client.kind](client.fill(URL, "sk-cdz-x", "forte"))
    found = {str(leaf) for leaf in leaves(read)}
    assert "sk-cdz-x" in found
    assert URL in {leaf.removesuffix("/v1") for leaf in found}
    assert "forte" in {leaf.rpartition("/")[2] for leaf in found} | {str(read.get("provider", ""))}
    assert "$" not in str(read)


@pytest.mark.parametrize("name", IN_FILES)
def test_settings_are_written_for_their_owner_alone(furnished: Path, name: str) -> None:
    """--write makes the file and its folders with mode 0600; the secret is not printed, and nothing else is left."""
    client = CLIENTS[name]
    done = connect_to(furnished, name, "--write")
    assert done.returncode == 0, done.stderr
    path = Path(client.file.replace("~", str(furnished / "home")))
    [secret] = KEY.findall(path.read_text())
    assert path.read_text() == client.fill("http://127.0.0.1:8080", secret)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [*path.parent.iterdir()] == [path]
    assert secret not in done.stdout + done.stderr


@pytest.mark.parametrize("name", IN_FILES)
def test_what_a_file_has_stays(tmp_path: Path, name: str) -> None:
    """The old settings and the new ones are in the file; comments stay where the format has them."""
    client, file = CLIENTS[name], tmp_path / "settings"
    old, new = OLD[client.kind], client.fill(URL, "sk-cdz-x")
    file.write_bytes(old.encode())
    merged = merge_settings(file, client.kind, new)
    read, before, added = (READ[client.kind](text) for text in (merged, old, new))
    assert {*map(str, leaves(read))} == {*map(str, leaves(before)), *map(str, leaves(added))}
    assert read.keys() == before.keys() | added.keys()
    assert ("# mine" in merged) is ("# mine" in old)


def test_a_list_is_extended(tmp_path: Path) -> None:
    """A model that the file has for another provider stays beside ours, and an equal setting is no clash."""
    file = tmp_path / "settings.json"
    file.write_text('{"modelProviders": {"openai": [{"id": "x"}]}, "security": {"auth": {"selectedType": "openai"}}}')
    merged = json.loads(merge_settings(file, "json", CLIENTS["qwen"].fill(URL, "sk-cdz-x")))
    assert [model["id"] for model in merged["modelProviders"]["openai"]] == ["x", "auto"]


@pytest.mark.parametrize(("name", "old", "reason"), TAKEN)
def test_a_setting_that_is_there_is_refused(furnished: Path, name: str, old: str | bytes, reason: str) -> None:
    """The command names it and says what to do; the file stays as it was, and no key is created."""
    path = Path(CLIENTS[name].file.replace("~", str(furnished / "home")))
    path.parent.mkdir(parents=True)
    path.write_bytes(before := old if isinstance(old, bytes) else old.encode())
    done = connect_to(furnished, name, "--write")
    assert done.returncode == 1
    assert reason in done.stderr
    assert "leave out --write" in done.stderr
    assert path.read_bytes() == before
    assert keys_of(furnished) == []


def test_without_a_place_for_the_file_no_key_is_created(furnished: Path) -> None:
    """Where its folder cannot be made, the command says so."""
    (furnished / "home").write_text("a file")
    done = connect_to(furnished, "codex", "--write")
    assert done.returncode == 1
    assert "config.toml cannot be" in done.stderr
    assert keys_of(furnished) == []


def test_a_key_that_cannot_be_written_is_revoked(furnished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the file becomes unwritable after the key was created, the key ends and no draft stays."""
    monkeypatch.chdir(furnished)
    monkeypatch.setenv("HOME", str(furnished / "home"))
    path, settings = furnished / "home" / ".claude" / "settings.json", load_config(None)

    def create() -> tuple[str, OwnedKey]:
        path.mkdir()
        order = KeyOrder("claude on here", scopes=SCOPES)
        return with_owner(settings, EMAIL, lambda store, owner: create_key(store, owner, order, now_ms()))

    with pytest.raises(ValueError, match="cannot be read"):
        connect.write_settings(settings, CLIENTS["claude"], lambda secret: f'"{secret}"', create)
    assert [key["state"] for key in keys_of(furnished)] == ["revoked"]
    assert [*path.parent.iterdir()] == [path]


def test_a_link_to_a_file_stays_a_link(furnished: Path) -> None:
    """A file that is kept elsewhere is written there."""
    (furnished / "home").mkdir()
    link, kept = furnished / "home" / ".aider.conf.yml", furnished / "kept.yml"
    link.symlink_to(kept)
    assert connect_to(furnished, "aider", "--write").returncode == 0
    assert link.is_symlink()
    assert KEY.search(kept.read_text())


def test_the_account_is_the_only_one_or_named(furnished: Path) -> None:
    """With two accounts --account is needed; an unknown one and one without a store are told apart."""
    assert "There is no store" in connect_to(furnished / "data", "codex").stderr
    assert run_here(furnished, "account", "create", OTHER, "--password-stdin", given=PASSWORD).returncode == 0
    assert "There are several accounts: name one with --account" in connect_to(furnished, "codex").stderr
    assert (
        "There is no account for 'nobody@example.org'"
        in connect_to(furnished, "codex", "--account", "nobody@example.org").stderr
    )
    assert f"belongs to {OTHER}" in connect_to(furnished, "codex", "--account", OTHER).stderr
    for email in (EMAIL, OTHER):
        assert run_here(furnished, "account", "suspend", email).returncode == 0
    assert "There is no active account" in connect_to(furnished, "codex").stderr


@pytest.mark.parametrize("url", ["chat.example.org", 'http://x";rm', "http://$(id)", "http://user:key@x", "http://x y"])
def test_an_address_is_an_address(furnished: Path, url: str) -> None:
    """Nothing is accepted that a shell or the format of a file would read, and no key is created."""
    done = connect_to(furnished, "openai", "--url", url)
    assert done.returncode == 1
    assert "is not an address" in done.stderr
    assert keys_of(furnished) == []


def test_what_cannot_be_done_is_said(furnished: Path) -> None:
    """A client without a file, and an address without TLS on another machine."""
    assert "reads no file: leave out --write" in connect_to(furnished, "openai", "--write").stderr
    assert "is not encrypted" in connect_to(furnished, "openai", "--url", "http://chat.example.org").stderr
    assert "is not encrypted" not in connect_to(furnished, "openai").stderr
