"""What a reply costs: the upstream's usage at the price of the class or, without usage, what was delivered."""

from typing import Any

import pytest

from tests.account import PROMPT_TOKENS, Account, forte_nano, prompt_bytes
from tests.loopback import ROLE, STOP, USAGE, LoopbackUpstream, Pause, Sse, chunk, said, usage_chunk, usage_of
from tests.raw_client import read_until
from tests.service import CREDIT_NANO
from tests.service_config import CHARACTER
from tests.tokens import count_prompt, count_tokens

RESERVED_REQUESTS = 8
TEXT = "Music is the silence between the notes."
USAGE_COST_NANO = {
    "mezzo": 8 * 100 + 3 * 20 + 7 * 210,  # its cached tokens have a price of their own
    "forte": 11 * 1_070 + 7 * 3_450,
    "fortissimo": 11 * 3_450 + 7 * 17_250,
    "auto": 11 * 1_070 + 7 * 3_450,
}


def test_stream_is_held_and_charged_before_done(account: Account, upstream: LoopbackUpstream) -> None:
    """While a stream runs its quote is held, in a reserve for eight; when [DONE] is read the charge is in the store."""
    pause = Pause()
    upstream.script(Sse([ROLE, said("first word"), pause, STOP, usage_chunk(USAGE)]))
    with account.api.open_chat(stream=True, max_tokens=100) as connection:
        read_until(connection, b"first word")
        quote_nano = forte_nano(prompt_bytes(stream=True, max_tokens=100), 100)
        assert (account.held_nano, account.spent_nano) == (RESERVED_REQUESTS * quote_nano, 0)
        pause.release()
        read_until(connection, b"[DONE]")
        assert account.charge()["amount_nano"] == -USAGE_COST_NANO["forte"]


@pytest.mark.parametrize(("more_bytes", "is_counted"), [(0, False), (1, True)])
def test_expensive_prompt_is_held_by_its_tokens(
    account: Account, upstream: LoopbackUpstream, more_bytes: int, is_counted: bool
) -> None:
    """With credit for 256 requests like it a prompt is held by its bytes; with less, by its tokens."""
    most_bytes = (CREDIT_NANO // 256 - forte_nano(0, 100)) // forte_nano(1, 0)
    fields: dict[str, Any] = {"stream": True, "max_tokens": 100, "messages": [{"role": "user", "content": ""}]}
    content = fields["messages"][0]["content"] = "x" * (most_bytes + more_bytes - prompt_bytes(**fields))
    pause = Pause()
    upstream.script(Sse([ROLE, said("first word"), pause, STOP]))
    with account.api.open_chat(**fields) as connection:
        read_until(connection, b"first word")
        prompt_tokens = count_prompt([CHARACTER, content])
        quote_nano = forte_nano(prompt_tokens if is_counted else most_bytes, 100)
        requests = RESERVED_REQUESTS if is_counted else 1  # by its tokens it is cheap, and more of them are reserved
        assert account.held_nano == requests * quote_nano
        pause.release()
        read_until(connection, b"[DONE]")
    assert account.charge()["amount_nano"] == -forte_nano(prompt_tokens, 2)


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning", "refusal"])
def test_disconnect_during_reasoning_is_charged(account: Account, upstream: LoopbackUpstream, field: str) -> None:
    """Reasoning and refusals that were delivered are charged like any other text."""
    pause = Pause()
    upstream.script(Sse([chunk({field: TEXT}), pause]))
    with account.api.open_chat(stream=True) as connection:
        read_until(connection, b'"%b":' % field.encode())
        pause.wait_until_reached()
    account.wait_until_ended()
    assert account.charge()["completion_tokens"] == count_tokens(TEXT)


def test_disconnect_within_one_long_chunk_is_charged(account: Account, upstream: LoopbackUpstream) -> None:
    """A client that reads most of a single long chunk and disconnects pays for the chunk."""
    text = "hello " * 100_000
    upstream.script(Sse([ROLE, said(text), STOP, usage_chunk(usage_of(11, count_tokens(text)))]))
    with account.api.open_chat(stream=True) as connection:
        read_bytes = 0
        while read_bytes < 500_000:
            read_bytes += len(connection.recv(65_536))
    account.wait_until_ended()
    assert account.charge()["completion_tokens"] == count_tokens(text)


def test_disconnect_is_charged_up_to_max_tokens(account: Account, upstream: LoopbackUpstream) -> None:
    """If the upstream ignores max_tokens, a disconnect is charged no more than max_tokens."""
    upstream.script(Sse([ROLE, said("hello " * 1_000), Pause()]))
    with account.api.open_chat(stream=True, max_tokens=16) as connection:
        read_until(connection, b"hello ")
    account.wait_until_ended()
    assert account.charge()["amount_nano"] == -forte_nano(PROMPT_TOKENS, 16)
