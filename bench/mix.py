"""What a hosted service is asked, from a seed: turns of agents, chats and short requests of many accounts.

Accounts are chosen by Zipf's law. An agent's conversation grows from turn to turn, and begins anew when it is long. The
number of a request is in its prompt, where the upstream finds it, and in its request id.
"""

import enum
import itertools
import random
import re
from collections.abc import Iterator, Sequence

import msgspec

from bench.conversation import Conversation
from bench.workload import PLAIN, TEXT, End, Shape, chat_body

ACCOUNTS = 10_000
TITLE = "A hosted service's mix"  # of the section of the report
WITHOUT, TENSORZERO, LITELLM = "without a gateway", "TensorZero", "LiteLLM, with budgets"
OWN = ("Cadenza, SQLite", "Cadenza, Postgres and Valkey, 2 processes")
SHARES = {"agent": 60, "chat": 30, "plain": 10}
IDEMPOTENT, LEAVING, FAILING = 0.10, 0.05, 0.01
CAPPED_EVERY = 10  # accounts
AGENT_BYTES = (40_000, 400_000)
TURN_BYTES = (4_000, 40_000)  # that a turn adds to its conversation
CHAT_BYTES = (2_000, 8_000)
LEAVES_AFTER = (0.02, 0.4)  # of the chunks, while the reply is still text
MODEL = "bench"
MODEL_FIELD = b'"model":"%b"'
NUMBER = re.compile(rb"\[real (\d{7})\]")


class Kind(enum.StrEnum):
    """What is asked, and so what is answered."""

    AGENT = "agent"
    CHAT = "chat"
    PLAIN = "plain"


SHAPES = {
    Kind.AGENT: Shape(chunks=150, gap_ms=10, end=End.CALLS),
    Kind.CHAT: Shape(chunks=300, gap_ms=20),
    Kind.PLAIN: PLAIN,
}


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """A request, `at_s` after the start of the load."""

    number: int
    at_s: float
    account: int
    kind: Kind
    body_bytes: int
    conversation: int = 0  # the seed of an agent's
    leaves_after: int | None = None  # chunks
    fails: bool = False  # the upstream fails at first; a gateway may try again
    is_idempotent: bool = False

    @property
    def shape(self) -> Shape:
        shape = SHAPES[self.kind]
        return msgspec.structs.replace(shape, end=End.FAILED) if self.fails else shape

    @property
    def tag(self) -> str:
        return f"[real {self.number:07d}]"


def mix(seed: int, seconds: float, per_s: float, first: int = 1) -> list[Ask]:
    """An open load: requests arrive at random times, whether others have ended or not."""
    chance = random.Random(seed)  # noqa: S311 the same requests in every run
    shares = list(itertools.accumulate(1 / rank for rank in range(1, ACCOUNTS + 1)))  # by Zipf's law
    turns = dict[int, tuple[int, int]]()
    asks, at_s = list[Ask](), chance.expovariate(per_s)
    while at_s < seconds:
        [account] = chance.choices(range(ACCOUNTS), cum_weights=shares)
        [kind] = chance.choices([*Kind], weights=[SHARES[one] for one in Kind])
        if kind == Kind.AGENT:
            turns[account] = conversation, size = _next_turn(chance, account, turns.get(account))
        else:
            conversation, size = 0, chance.randint(*CHAT_BYTES) if kind == Kind.CHAT else len(TEXT)
        chunks = SHAPES[kind].chunks
        leaves_after = round(chunks * chance.uniform(*LEAVES_AFTER)) if chance.random() < LEAVING else 0
        fails = chance.random() < FAILING
        ask = Ask(
            number=first + len(asks),
            at_s=at_s,
            account=account,
            kind=kind,
            body_bytes=size,
            conversation=conversation,
            leaves_after=None if fails else leaves_after or None,
            fails=fails,
            is_idempotent=chance.random() < IDEMPOTENT,
        )
        asks.append(ask)
        at_s += chance.expovariate(per_s)
    return asks


def _next_turn(chance: random.Random, account: int, last: tuple[int, int] | None) -> tuple[int, int]:
    """The seed of the conversation, and the length of its next body. The first turn that is seen may be a late one."""
    least, most = AGENT_BYTES
    if last is None:
        return 1000 * (account + 1), chance.randint(least, most)
    conversation, size = last[0], last[1] + chance.randint(*TURN_BYTES)
    return (conversation, size) if size <= most else (conversation + 1, least)


def bodies(asks: Sequence[Ask]) -> Iterator[bytes]:
    """The body of each request, for the model MODEL."""
    longest = dict[int, int]()
    for ask in asks:
        longest[ask.conversation] = max(ask.body_bytes, longest.get(ask.conversation, 0))
    conversations = {seed: Conversation(seed, size) for seed, size in longest.items() if seed}
    for ask in asks:
        if ask.kind == Kind.AGENT:
            yield conversations[ask.conversation].body(MODEL, ask.shape, ask.body_bytes, ask.tag)
        else:
            text = TEXT * (ask.body_bytes // len(TEXT) + 1)
            yield chat_body(MODEL, ask.shape, f"{ask.tag} {text[: ask.body_bytes]}")
