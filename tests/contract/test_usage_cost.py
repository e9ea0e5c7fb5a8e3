"""`usage.cost`: what a reply cost, in dollars, for those who ask for it. Others see nothing new."""

from typing import Any

import pytest

from tests.account import Account

ASKED = {"usage": {"include": True}}


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_can_ask_for_its_cost(account: Account, stream: bool) -> None:
    """The cost is a number, and is what the account was charged."""
    cost = account.api.chat(stream=stream, **ASKED).usage["cost"]
    assert round(cost * 1e9) == -account.charge()["amount_nano"]


@pytest.mark.parametrize("given", [{}, {"usage": None}, {"usage": {}}, {"usage": {"include": False}}])
def test_others_are_not_told(account: Account, given: dict[str, Any]) -> None:
    """The usage has no cost, and the field is not named as ignored."""
    reply = account.api.chat(**given)
    assert "cost" not in reply.json["usage"]
    assert "x-cadenza-ignored" not in reply.headers


def test_another_type_is_refused(account: Account) -> None:
    """A switch that is not one is 400, and the message names the field."""
    assert account.api.chat(usage={"include": "yes"}).error(400).startswith("usage.include: ")


def test_a_large_body_can_ask_too(account: Account) -> None:
    """A body that is parsed in another process has the same switch."""
    messages = [{"role": "user", "content": "word " * 20_000}]
    assert "cost" in account.api.chat(messages=messages, **ASKED).json["usage"]
