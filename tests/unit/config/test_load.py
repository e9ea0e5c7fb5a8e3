"""The configuration: its defaults, the rules of the file, and problems that name the line, the key and the remedy."""

import io
from collections.abc import Mapping
from pathlib import Path

import pytest
import trustme
from rich.console import Console

from cadenza.config import ConfigError, Settings, load_settings
from cadenza.config.checks import Secret
from cadenza.config.settings import LimitSettings, ProviderSettings, ServerSettings
from cadenza.core.money import Price
from cadenza.core.records import Route, Timeouts

KEY_RULE = "the key must be one line of printable ASCII characters, and nothing else"
TEXT = "a non-empty text without null characters"
NO_ENVIRONMENT: Mapping[str, str] = {}

ACME = """
[providers.acme]
kind = "openai"
base_url = "https://acme.example/v1"
api_key_env = "ACME_API_KEY"
retention = "zero"
"""
ACME_FILE = ACME.replace('api_key_env = "ACME_API_KEY"', 'api_key_file = "acme.key"')
LOCAL = """
[providers.local]
kind = "embedded"
retention = "zero"
"""
ROUTE = """
[[classes.forte.routes]]
provider = "acme"
model = "acme-large"
"""
LOCAL_ROUTE = """
[[classes.forte.routes]]
provider = "local"
"""
EVERY_KEY = (Path(__file__).parent / "every_key.toml").read_text()
PATIENT = Timeouts(first_token_s=300.0)  # of the embedded model


def load(folder: Path, text: str, environ: Mapping[str, str] = NO_ENVIRONMENT) -> Settings:
    (folder / "cadenza.toml").write_text(text)
    return load_settings(None, environ, folder)


def problems(folder: Path, text: str, environ: Mapping[str, str] = NO_ENVIRONMENT) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(folder, text, environ)
    return caught.value.problems


def write_files(folder: Path) -> None:
    """The files that EVERY_KEY names."""
    for name in ("models/tiny.q8.gguf", "keys/beta.key"):
        (folder / name).parent.mkdir()
        (folder / name).write_text("beta-secret\n")


@pytest.mark.parts(reason="their keys are among them")
def test_every_key_is_read(tmp_path: Path) -> None:
    """A file that sets every key is read key by key, with routes sorted by order."""
    write_files(tmp_path)
    settings = load(tmp_path, EVERY_KEY, {"ACME_API_KEY": "secret"})
    assert settings.source == tmp_path / "cadenza.toml"
    assert settings.server == ServerSettings("0.0.0.0", 9000, 2, 5.0)
    assert settings.store.url == "postgresql://user:pw@db.example/cadenza"
    assert settings.store.region == "eu"
    assert settings.limits == LimitSettings(2.0, 3, 4)
    assert settings.prices["mezzo"] == Price(200, 1000, 50)
    assert settings.providers["acme"] == ProviderSettings(
        name="acme",
        kind="openai",
        retention="zero",
        base_url="https://acme.example/v1",
        api_key_env="ACME_API_KEY",
        api_key=Secret("secret"),
        dialect="openrouter",
        api_version="2024-10-21",
        insecure=True,
    )
    assert settings.providers["beta"].api_key == "beta-secret"
    assert settings.providers["local"].model_path == tmp_path / "models" / "tiny.q8.gguf"
    assert settings.classes["forte"].character == "Be brief."
    assert settings.classes["forte"].routes == (
        Route("local", "tiny.q8", 8192, 4096, timeouts=PATIENT, custom_tools=False),
        Route(
            *("acme", "acme-large", 1_000_000, 131_072, 1, 3, Timeouts(1.0, 2.0, 3.5, 4.0)),
            continues=True,
            system="each",
            reasoning="drop",
            always_send_max_tokens=True,
            max_tokens_field="max_completion_tokens",
            omit=("seed", "temperature"),
            drops=("seed", "temperature"),
            passes=("verbosity", "top_k", "min_p"),
            fields='{"thinking": {"type": "disabled"}}',
            retention_by="api",
        ),
    )


def test_config_option_wins_over_the_environment_and_the_folder(tmp_path: Path) -> None:
    """--config comes first, then $CADENZA_CONFIG, then cadenza.toml in the working folder."""
    for port, name in enumerate(("cadenza.toml", "env.toml", "option.toml"), start=1):
        (tmp_path / name).write_text(f"[server]\nport = {port}\n")
    environ = {"CADENZA_CONFIG": str(tmp_path / "env.toml")}
    assert load_settings("option.toml", environ, tmp_path).server.port == 3
    assert load_settings(None, environ, tmp_path).server.port == 2
    assert load_settings(None, {"CADENZA_CONFIG": ""}, tmp_path).server.port == 1


@pytest.mark.parametrize(
    ("option", "environ", "named_by"),
    [("gone.toml", {}, "named by --config"), (None, {"CADENZA_CONFIG": "gone.toml"}, "named by $CADENZA_CONFIG")],
)
def test_missing_file_says_how_it_was_named(
    tmp_path: Path, option: str | None, environ: dict[str, str], named_by: str
) -> None:
    """A named file that does not exist stops the start, with its path and with what named it."""
    with pytest.raises(ConfigError) as caught:
        load_settings(option, environ, tmp_path)
    assert caught.value.path == tmp_path / "gone.toml"
    assert caught.value.problems == [f"the file {named_by} cannot be read: No such file or directory"]


def test_unreadable_file_in_the_folder_is_not_ignored(tmp_path: Path) -> None:
    """A cadenza.toml that exists but cannot be read is an error; the default is not used in its place."""
    (tmp_path / "cadenza.toml").mkdir()
    with pytest.raises(ConfigError, match="found in the working folder cannot be read: Is a directory"):
        load_settings(None, NO_ENVIRONMENT, tmp_path)


def test_file_that_is_not_utf8(tmp_path: Path) -> None:
    """Bytes that are not UTF-8 are a problem, not a crash."""
    (tmp_path / "cadenza.toml").write_bytes(b'[server]\nhost = "\xff"\n')
    with pytest.raises(ConfigError, match="is not UTF-8 text"):
        load_settings(None, NO_ENVIRONMENT, tmp_path)


def test_report_names_the_file_and_gives_a_line_to_each_problem(tmp_path: Path) -> None:
    """str() of the error is the file's name, then a line for each problem."""
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, "[server]\nport = -1\nhost = 3\n")
    assert str(caught.value).splitlines() == [
        f"{tmp_path / 'cadenza.toml'}: 2 problems",
        "  line 2: server.port: must be a whole number from 0 to 65,535, not -1",
        f"  line 3: server.host: must be {TEXT}, not a whole number",
    ]


@pytest.mark.parametrize("key", [line.partition(" = ")[0] for line in EVERY_KEY.splitlines() if " = " in line])
def test_a_value_that_fits_no_key_is_reported_under_its_key(tmp_path: Path, key: str) -> None:
    """A wrong value of any key gives a report that names the key, never a crash."""
    write_files(tmp_path)
    for value in ("[7]", "1979-05-27", "07:32:00", "nan", "{ x = 07:32:00 }", "-1", '""', '"\\u0000"'):
        lines = [f"{key} = {value}" if line.startswith(f"{key} = ") else line for line in EVERY_KEY.splitlines()]
        found = problems(tmp_path, "\n".join(lines))
        assert any(f".{key}: " in problem or f".{key}.x: " in problem for problem in found), value


def test_ca_file_is_relative_to_the_config(tmp_path: Path) -> None:
    """The certificates are read from a file beside the config; what is written around them does not matter."""
    certificate = trustme.CA().cert_pem.bytes().decode()
    (tmp_path / "our-ca.pem").write_text(f"# Häuser & Söhne\n{certificate}")
    settings = load(tmp_path, ACME.strip() + '\nca_file = "our-ca.pem"\n' + ROUTE)
    assert certificate.strip() in (settings.providers["acme"].authorities or "")


def test_providers_without_classes_show_the_lines_to_add(tmp_path: Path) -> None:
    """The problem of a file with providers but no classes shows lines to add, and those lines load."""
    (problem,) = problems(tmp_path, ACME)
    _, *lines = problem.splitlines()
    assert lines[:2] == ["[[classes.forte.routes]]", 'provider = "acme"']
    settings = load(tmp_path, ACME + "\n".join(lines))
    assert settings.classes["forte"].routes[0].provider == "acme"


def test_key_comes_from_the_environment_or_a_file(tmp_path: Path) -> None:
    """A provider's key is the value of its variable, or the text of its file, without blanks around it."""
    for provider, environ in ((ACME, {"ACME_API_KEY": "s3cret\n"}), (ACME_FILE, NO_ENVIRONMENT)):
        (tmp_path / "acme.key").write_text(" s3cret\r\n")
        settings = load(tmp_path, provider + ROUTE, environ)
        assert settings.providers["acme"].api_key == "s3cret"
        assert settings.missing_secrets == ()


def test_no_secret_shows_in_any_form_of_the_settings(tmp_path: Path) -> None:
    """Neither repr, str nor rich shows a provider's key, or a password of a proxy, the store or Valkey."""
    text = '[store]\nurl = "postgresql://me:pa?ss@w0rd@db/x?password=w0rd"\n' + ACME + ROUTE
    text = '[shared_state]\nurl = "valkey://me:w0rd@valkey.test"\n' + text
    environ = {"ACME_API_KEY": "s3cret", "HTTPS_PROXY": "http://me:w0rd@proxy.test:3128"}
    settings = load(tmp_path, text, environ)
    console = Console(file=io.StringIO(), width=200)
    console.print(settings)
    assert isinstance(console.file, io.StringIO)
    for shown in (repr(settings), str(settings), console.file.getvalue()):
        assert "acme.example" in shown
        assert "***" in shown
        assert not any(secret in shown for secret in ("s3cret", "pa?ss", "w0rd"))
