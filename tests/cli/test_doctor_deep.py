"""cadenza doctor --deep: the real command against a real server on loopback, which does some things badly."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.program import Done, run, run_here
from tests.loopback import LoopbackUpstream, Raw, Wait
from tests.trial_upstream import SECRET_WORDS, Provider, chats

KEY = "sk-provider-key-5513"
OPTIONAL = ("stream_options", "seed", "temperature", "top_p", "stop", "presence_penalty", "frequency_penalty", "tools")
ALL_IS_WELL = 8
MOST = 25


def test_good_provider(tmp_path: Path, upstream: LoopbackUpstream) -> None:
    """A provider that takes everything gets eight small requests, no warning and exit code 0."""
    upstream.always(Provider())
    configure(tmp_path, upstream.base_url)
    findings = deep(run_here(tmp_path, "doctor", "--deep", "--json"), code=0)
    assert {finding["state"] for finding in findings} == {"ok"}
    assert [finding["check"] for finding in findings] == [
        *("plain", "max_tokens", "stream", "usage", "sampling", "system", "tools", "forced", "tool turn", "reasoning"),
        "requests",
    ]
    sent = chats(upstream.requests)
    assert len(sent) == ALL_IS_WELL
    assert max(body["max_tokens"] for body in sent) <= 64


def test_fields_that_are_refused(tmp_path: Path, upstream: LoopbackUpstream) -> None:
    """Refused fields are warnings with the lines for the config; with these lines nothing is left to warn of."""
    upstream.always(Provider(refuses=lambda body: {"stream_options", "max_completion_tokens", "seed"} & body.keys()))
    configure(tmp_path, upstream.base_url, dialect='dialect = "openai"')
    warnings = unwell(deep(run_here(tmp_path, "doctor", "--deep", "--json"), code=0))
    settings = {finding["check"]: finding["todo"].partition("\n")[2] for finding in warnings}
    assert settings == {
        "max_tokens": 'max_tokens_field = "max_tokens"',
        "stream": 'omit = ["stream_options", "seed"]',
        "sampling": 'omit = ["stream_options", "seed"]',
        "usage": "",
    }
    configure(tmp_path, upstream.base_url, *set(settings.values()), dialect='dialect = "openai"')
    (left,) = unwell(deep(run_here(tmp_path, "doctor", "--deep", "--json"), code=0))
    assert left["check"] == "usage", "a stream without stream_options has none here"


def test_silence(tmp_path: Path, upstream: LoopbackUpstream) -> None:
    """A provider that never answers gets one request, which ends after --timeout. That is a fault."""
    upstream.script(Provider())  # GET /models
    upstream.always(Raw([Wait()]))
    configure(tmp_path, upstream.base_url)
    (fault,) = unwell(deep(run_here(tmp_path, "doctor", "--deep", "--timeout", "4.5", "--json"), code=1))
    assert (fault["check"], fault["state"]) == ("plain", "fault")
    assert fault["found"] == "nothing arrived in time (timed_out); the rest was not tried"
    assert len(chats(upstream.requests)) == 1


def test_nothing_of_the_upstream_is_shown(tmp_path: Path, upstream: LoopbackUpstream) -> None:
    """Neither the words, nor the address, nor the key of the provider is printed."""
    upstream.always(Provider(refuses=refuses_what_is_optional))
    (tmp_path / "acme.key").write_text(KEY)
    configure(tmp_path, upstream.base_url, dialect='api_key_file = "acme.key"')
    done = run_here(tmp_path, "doctor", "--deep")
    assert upstream.requests[-1].headers["authorization"] == f"Bearer {KEY}"
    for hidden in (SECRET_WORDS, upstream.base_url, KEY):
        assert hidden not in done.stdout + done.stderr


def test_text_fits_a_terminal(tmp_path: Path, upstream: LoopbackUpstream) -> None:
    """The findings stand under the model's name in lines of 80 columns, with the settings on lines of their own."""
    upstream.always(Provider(refuses=lambda body: "seed" in body))
    configure(tmp_path, upstream.base_url)
    done = run(tmp_path, "doctor", "--deep", COLUMNS="80")
    assert done.returncode == 0, done.stderr
    shown = done.stdout.partition("\nacme: large\n")[2].splitlines()
    assert shown[0] == "ok       plain      answers"
    assert " " * 20 + 'omit = ["seed"]' in shown
    assert max(map(len, shown)) <= 80


def test_each_model_once(tmp_path: Path, upstream: LoopbackUpstream) -> None:
    """A model that serves several classes is tried once; another model of the provider is tried too."""
    upstream.always(Provider())
    configure(tmp_path, upstream.base_url)
    with (tmp_path / "cadenza.toml").open("a") as config:
        for class_id, model in (("mezzo", "large"), ("fortissimo", "huge")):
            config.write(f'\n[[classes.{class_id}.routes]]\nprovider = "acme"\nmodel = "{model}"\n')
    findings = deep(run_here(tmp_path, "doctor", "--deep", "--json"), code=0)
    assert [one["model"] for one in findings if one["check"] == "plain"] == ["large", "huge"]
    assert [body["model"] for body in chats(upstream.requests)] == ["large"] * ALL_IS_WELL + ["huge"] * ALL_IS_WELL


def test_one_provider(tmp_path: Path, upstream: LoopbackUpstream) -> None:
    """With --provider the models of other providers are not tried."""
    upstream.always(Provider())
    configure(tmp_path, upstream.base_url)
    with (tmp_path / "cadenza.toml").open("a") as config:
        config.write('\n[providers.local]\nkind = "embedded"\nretention = "zero"\n')
        config.write('[[classes.mezzo.routes]]\nprovider = "local"\n')
    findings = deep(run_here(tmp_path, "doctor", "--deep", "--provider", "acme", "--json"), code=0)
    assert {finding["provider"] for finding in findings} == {"acme"}


@pytest.mark.slow(reason="the real model is loaded")
def test_embedded_model(tmp_path: Path) -> None:
    """The embedded model is started and asked once."""
    (finding,) = deep(run_here(tmp_path, "doctor", "--deep", "--timeout", "100", "--json"), code=0)
    assert (finding["check"], finding["state"], finding["provider"]) == ("plain", "ok", "local")


def refuses_what_is_optional(body: dict[str, Any]) -> bool:
    """Whether the request has more than a plain request or a stream needs."""
    roles = [message["role"] for message in body["messages"]]
    has_more_turns = roles not in (["system", "user"], ["user"])
    return has_more_turns or any(name in body for name in OPTIONAL)


def configure(folder: Path, base_url: str, *route: str, dialect: str = "") -> None:
    provider = ["[providers.acme]", 'kind = "openai"', f'base_url = "{base_url}"', 'retention = "zero"', dialect]
    routes = ["[[classes.forte.routes]]", 'provider = "acme"', 'model = "large"', *route]
    (folder / "cadenza.toml").write_text("\n".join([*provider, *routes]))


def deep(done: Done, code: int) -> list[dict[str, Any]]:
    """The findings of the trials."""
    assert done.returncode == code, done.stdout + done.stderr
    return [check for check in json.loads(done.stdout) if "provider" in check]


def unwell(findings: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [finding for finding in findings if finding["state"] != "ok"]
