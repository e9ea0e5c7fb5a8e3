"""The configuration of proxies and of the token for /metrics."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from cadenza.config import ConfigError, load_settings
from cadenza.config.settings import ServerSettings

NETWORKS_RULE = 'must be an array of addresses and networks, like ["127.0.0.1", "10.0.0.0/8"]'
WITH_TOKEN = '[server]\nmetrics_token_env = "METRICS_TOKEN"\n'
MISSING = (
    "server.metrics_token_env: the environment variable METRICS_TOKEN is unset or empty; "
    "put the token for /metrics into it."
)
NO_ENVIRONMENT: Mapping[str, str] = {}


def load(folder: Path, text: str, environ: Mapping[str, str] = NO_ENVIRONMENT) -> ServerSettings:
    (folder / "cadenza.toml").write_text(text)
    return load_settings(None, environ, folder).server


def problems(folder: Path, text: str, environ: Mapping[str, str] = NO_ENVIRONMENT) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(folder, text, environ)
    return caught.value.problems


def test_defaults(tmp_path: Path) -> None:
    """Proxies on this machine are trusted, and there is no token."""
    server = load(tmp_path, "")
    assert (server.trusted_proxies, server.metrics_token) == (("127.0.0.1", "::1"), None)


@pytest.mark.parametrize(
    ("given", "proxies"),
    [
        ("[]", ()),
        ('["10.0.0.1"]', ("10.0.0.1/32",)),
        ('["10.0.0.0/8", "2001:db8::/32"]', ("10.0.0.0/8", "2001:db8::/32")),
        ('["::1", "::ffff:10.0.0.1"]', ("::1/128", "10.0.0.1/32")),
    ],
)
def test_trusted_proxies(tmp_path: Path, given: str, proxies: tuple[str, ...]) -> None:
    """Addresses and networks of both families; a mapped IPv4 address is the IPv4 address."""
    assert load(tmp_path, f"[server]\ntrusted_proxies = {given}\n").trusted_proxies == proxies


@pytest.mark.parametrize(
    ("given", "meant"),
    [("10.20.0.1/16", '"10.20.0.0/16", or "10.20.0.1" alone'), ("fd00::1/8", '"fd00::/8", or "fd00::1" alone')],
)
def test_a_network_with_a_host_part(tmp_path: Path, given: str, meant: str) -> None:
    """It is refused with what was probably meant."""
    assert problems(tmp_path, f'[server]\ntrusted_proxies = ["{given}"]\n') == [
        f"line 2: server.trusted_proxies: must give a network by its first address; did you mean {meant}?"
    ]


@pytest.mark.parametrize("given", ['"127.0.0.1"', '["localhost"]', "[1]", '[["::1"]]', "{}", '["*"]'])
def test_wrong_proxies(tmp_path: Path, given: str) -> None:
    """Names, wildcards and other types are refused."""
    assert problems(tmp_path, f"[server]\ntrusted_proxies = {given}\n") == [
        f"line 2: server.trusted_proxies: {NETWORKS_RULE}"
    ]


def test_the_token_comes_from_the_environment(tmp_path: Path) -> None:
    """The token is the value of the variable, without blanks around it, and no repr shows it."""
    server = load(tmp_path, WITH_TOKEN, {"METRICS_TOKEN": "t0ken\n"})
    assert server.metrics_token == "t0ken"
    assert "t0ken" not in repr(server)


@pytest.mark.parametrize("environ", [{}, {"METRICS_TOKEN": " "}], ids=["unset", "empty"])
def test_a_missing_token_stops_the_start(tmp_path: Path, environ: dict[str, str]) -> None:
    """A token that is configured but not there is a missing secret: the metrics never open by mistake."""
    (tmp_path / "cadenza.toml").write_text(WITH_TOKEN)
    assert load_settings(None, environ, tmp_path).missing_secrets == (MISSING,)


@pytest.mark.parametrize("token", ["two words", "t0ken\nx", "t0kén", "t0\x07ken"])
def test_a_token_that_cannot_be_sent_is_refused(tmp_path: Path, token: str) -> None:
    """A token with blanks, control characters or characters outside ASCII is refused, and not repeated."""
    assert problems(tmp_path, WITH_TOKEN, {"METRICS_TOKEN": token}) == [
        "line 2: server.metrics_token_env: the token must be one word of printable ASCII characters"
    ]


def test_a_literal_token_is_refused(tmp_path: Path) -> None:
    """The token itself must not be in the file."""
    assert problems(tmp_path, '[server]\nmetrics_token = "t0ken"\n') == [
        "line 2: server.metrics_token: a token must not be in this file; name a variable with metrics_token_env"
    ]
