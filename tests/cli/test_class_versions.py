"""cadenza class show, history, diff, adopt, promote and rollback beside a running service."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner, Result

from cadenza.cli import app
from tests.account import Account, open_account
from tests.loopback import LoopbackUpstream
from tests.service import Service
from tests.service_config import RouteSpec, ServiceSpec

CLIENTS = 4
MORE_TOML = """
[[classes.forte.candidates]]
provider = "acme"
model = "two"
context_tokens = 1_000_000
max_output_tokens = 131_072
"""


@pytest.fixture
def account(shared_upstream: LoopbackUpstream, upstream: LoopbackUpstream) -> Iterator[Account]:
    """An account of a service whose config pins forte to the model `one`."""
    spec = ServiceSpec({"acme": upstream.base_url}, {"forte": [RouteSpec("acme", "one")]}, MORE_TOML)
    with Service(spec) as service, open_account(service) as opened:
        yield opened


def classes(account: Account, *words: str) -> Result:
    return CliRunner().invoke(app, ["class", *words, "--config", str(account.service.config)])


def change(account: Account, *words: str) -> str:
    done = classes(account, *words)
    assert done.exit_code == 0, done.output
    return done.stderr


def read(account: Account, *words: str) -> Any:
    done = classes(account, *words, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def refusal(account: Account, *words: str) -> str:
    done = classes(account, *words)
    assert done.exit_code == 1
    return str(done.exception)


def model_of_next(account: Account, upstream: LoopbackUpstream) -> str:
    before = len(upstream.requests)
    assert account.api.chat().status == 200
    [request] = upstream.requests[before:]
    return str(json.loads(request.body)["model"])


def test_a_class_is_adopted_promoted_and_rolled_back(account: Account, upstream: LoopbackUpstream) -> None:
    """Each command takes effect with the next request; refusals name the line, the command and the reason."""
    pinned = refusal(account, "promote", "forte", "--candidate", "acme/two", "--force", "--reason", "a trial")
    assert f"{account.service.config}, line " in pinned
    assert "cadenza class adopt forte" in pinned
    assert "version 1" in change(account, "adopt", "forte")
    no_verdict = refusal(account, "promote", "forte", "--candidate", "acme/two")
    assert "no verdict on acme/two" in no_verdict
    assert "did you mean" in refusal(account, "promote", "forte", "--candidate", "acem/two")
    assert "--reason" in refusal(account, "promote", "forte", "--candidate", "acme/two", "--force")
    assert model_of_next(account, upstream) == "one"
    change(account, "promote", "forte", "--candidate", "acme/two", "--force", "--reason", "a trial")
    assert model_of_next(account, upstream) == "two"
    [shown] = read(account, "show", "forte")
    assert (shown["version"]["number"], shown["previous"], shown["is_adopted"]) == (2, 1, True)
    change(account, "rollback", "forte", "--reason", "it is odd")
    assert model_of_next(account, upstream) == "one"
    assert [(one["event"], one["detail"].rpartition(": ")[2]) for one in read(account, "history", "forte")] == [
        ("class.config", "acme/one"),
        ("class.adopt", f"version 1 stays; {shown_pin(account)} no longer takes effect"),
        ("class.promote", "a trial"),
        ("class.rollback", "it is odd"),
    ]


def shown_pin(account: Account) -> str:
    text = account.service.config.read_text().splitlines()
    return f"{account.service.config}, line {text.index('[[classes.forte.routes]]') + 1}"


def test_versions_are_shown_and_compared(account: Account) -> None:
    """The tables and the JSON of show and diff name versions, routes and what differs."""
    change(account, "adopt", "forte")
    promotion = ("promote", "forte", "--candidate", "acme/two", "--force", "--reason", "a trial")
    assert classes(account, *promotion, "--share", "5").stderr.count("There are no canaries now") == 1
    assert "cadenza class rollback forte" in classes(account, *promotion).stderr
    [found] = read(account, "diff", "forte")
    assert (found["before"], found["after"]) == (1, 2)
    assert [(one["change"], one["route"]) for one in found["routes"]] == [
        ("removed", "acme/one"),
        ("added", "acme/two"),
    ]
    assert "+ route acme/two" in classes(account, "diff", "forte", "1", "2").stdout
    assert "Name two versions" in classes(account, "diff", "forte", "1", "1").stdout
    assert [(one["class"], one["version"], one["model"]) for one in read(account, "show")] == [("forte", 2, "two")]
    change(account, "adopt", "forte", "--undo")
    assert "the classes are" in refusal(account, "history", "fort")
