"""The configuration of the OpenTelemetry collector."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from cadenza.config import ConfigError, load_settings
from cadenza.config.settings import ObserveSettings

URL = 'otlp_url = "https://collector.example.org"\n'


def load(folder: Path, text: str, environ: Mapping[str, str]) -> ObserveSettings:
    (folder / "cadenza.toml").write_text(f"[observe]\n{text}")
    settings = load_settings(None, environ, folder)
    settings.require_secrets()
    return settings.observe


def test_headers_come_from_the_environment(tmp_path: Path) -> None:
    """The variable has them, and no repr shows them. A hundredth of the requests is traced by default."""
    found = load(tmp_path, URL + 'headers_env = "OTLP"\n', {"OTLP": "authorization=Bearer abc, x-tenant=1"})
    assert (found.headers, found.sample) == ("authorization=Bearer abc, x-tenant=1", 0.01)
    assert "abc" not in repr(found)


@pytest.mark.parametrize(
    ("text", "environ", "problem"),
    [
        ("sample = 0.5\n", {}, "line 1: observe: it needs otlp_url"),
        (URL + "sample = 5\n", {}, "line 3: observe.sample: must be a number from 0 to 1, not 5"),
        ('otlp_url = "http://collector:4318/v1/traces"\n', {}, "line 2: observe.otlp_url: must be the address before"),
        ('otlp_url = "http://a:abc@collector"\n', {}, "line 2: observe.otlp_url: must not have a user name"),
        ('otlp_url = "collector:4318"\n', {}, "line 2: observe.otlp_url: must be an http or https address"),
        ('otlp_url = "http://collector.example.org"\n', {}, "line 2: observe.otlp_url: http sends headers"),
        (URL + 'headers_env = "OTLP"\n', {}, "observe.headers_env: the environment variable OTLP is unset or empty"),
        (URL + 'headers_env = "OTLP"\n', {"OTLP": "abc"}, "line 3: observe.headers_env: the variable OTLP must have"),
        (URL + 'headers_env = "OTLP"\n', {"OTLP": "a=b\r\nc=d"}, "line 3: observe.headers_env: the variable OTLP"),
    ],
)
def test_mistakes(tmp_path: Path, text: str, environ: Mapping[str, str], problem: str) -> None:
    """Each is refused with what to write instead, and without the value of a secret."""
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text, environ)
    [found] = caught.value.problems
    assert found.startswith(problem)
    assert "abc" not in found
