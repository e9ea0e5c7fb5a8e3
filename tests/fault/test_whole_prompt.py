"""Whole accounts at once, with little credit or a small cap, against an upstream that counts all that it is sent.

What is served never costs more than the account or the cap can pay. $CADENZA_SENT_BODIES makes the run longer,
$CADENZA_SENT_SEED repeats it.
"""

import json
import os
import random
import secrets
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest

from cadenza.core.records import Cap
from tests.account import open_account
from tests.ledger_reader import cost_nano
from tests.loopback import LoopbackUpstream, Step, Whole, usage_of
from tests.loopback import Request as Received
from tests.raw_client import RawClient, Reply
from tests.sent_bodies import BodyMaker, count_whole
from tests.service import Service
from tests.service_config import RouteSpec, ServiceSpec

BODIES = int(os.environ.get("CADENZA_SENT_BODIES") or 300)
AT_ONCE = 20
CENT_NANO = 10_000_000
AMPLE_NANO = 10**12
SHORT = "cadenza_ledger_short_nano_total"
ABLE = 'vision = true\naudio = true\nfiles = true\npass = ["chat_template_kwargs"]\n'
LONG = "The ship left the harbour at nine. " * 1_300  # 10,400 tokens: a cent pays for less
USER = {"role": "user", "content": "hi"}
ATTACKS: dict[str, dict[str, Any]] = {
    "reasoning": {"messages": [USER, {"role": "assistant", "content": "a", "reasoning_content": LONG}, USER]},
    "name": {"messages": [{**USER, "name": LONG}]},
    "schema": {"messages": [USER], "response_format": {"type": "json_schema", "json_schema": {"name": LONG}}},
    "passed field": {"messages": [USER], "chat_template_kwargs": {"system_prompt": LONG}},
    "bias": {"messages": [USER], "logit_bias": {LONG: 1}},
    "image": {
        "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://a.b/c"}}]}]
    },
    "image with text": {
        "messages": [
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://a.b/c", "x": LONG}}]}
        ]
    },
}


class Counting(msgspec.Struct, frozen=True):
    """Counts everything that arrives, says so in its usage, and keeps what each request costs by its `seed`."""

    cost_nano: dict[int, int]

    def steps(self, request: Received) -> Iterable[Step]:
        sent = request.json
        tokens, answer_tokens = count_whole(request.body), sent["max_tokens"]
        self.cost_nano[sent["seed"]] = cost_nano("forte", tokens, answer_tokens)
        return Whole(["all", " of", " it"], usage_of(tokens, answer_tokens)).steps(request)


@pytest.fixture(scope="module")
def served(shared_upstream: LoopbackUpstream) -> Iterator[Service]:
    routes = {"forte": [RouteSpec("loopback", more_toml=ABLE)]}
    with Service(ServiceSpec({"loopback": shared_upstream.base_url}, routes)) as service:
        yield service


@pytest.fixture
def seed() -> int:
    chosen = int(os.environ.get("CADENZA_SENT_SEED") or secrets.randbits(32))
    sys.stdout.write(f"CADENZA_SENT_SEED={chosen}\n")
    return chosen


def send_all(api: RawClient, bodies: list[bytes]) -> list[Reply]:
    with ThreadPoolExecutor(AT_ONCE) as threads:
        return list(threads.map(api.post, bodies))


@pytest.mark.slow(reason="counts the tokens of many requests")
def test_what_is_served_never_costs_more_than_was_held(served: Service, upstream: LoopbackUpstream, seed: int) -> None:
    """Bodies of every shape, twenty at once: each is paid for in full by the upstream's own count, or refused."""
    maker, chosen, statuses, ratios = BodyMaker(seed), random.Random(seed), Counter[int](), [0.0]
    numbers = iter(range(BODIES))
    for group in range(BODIES // AT_ONCE):
        costs: dict[int, int] = {}
        upstream.reset()
        upstream.always(Counting(costs))
        limit_nano, is_capped = chosen.randrange(CENT_NANO // 20, 4 * CENT_NANO), group % 3 == 0
        with open_account(served, AMPLE_NANO if is_capped else limit_nano) as account:
            cap = Cap(limit_nano, "total")
            key = served.create_key(account.email, cap=cap) if is_capped else account.api.key
            bodies = [maker.body(("seed", next(numbers))) for _ in range(AT_ONCE)]
            replies = send_all(RawClient(served.port, key), bodies)
            assert account.spent_nano == sum(costs.values()) <= limit_nano
        statuses.update(reply.status for reply in replies)
        assert sum(reply.status == 200 for reply in replies) == len(costs)
        ratios.append(sum(costs.values()) / limit_nano)
    assert {*statuses} <= {200, 402}
    assert statuses[200] > BODIES // 10
    assert statuses[402] > BODIES // 10
    assert served.process.metric(SHORT) == 0
    sys.stdout.write(f"{dict(statuses)}, at most {max(ratios):.4f} of the credit or cap was spent, nothing was short\n")


@pytest.mark.parametrize("is_capped", [False, True])
@pytest.mark.parametrize("attack", [*ATTACKS])
def test_a_cent_buys_no_more_than_a_cent(
    served: Service, upstream: LoopbackUpstream, attack: str, is_capped: bool
) -> None:
    """Twenty requests at once whose prompt is where nobody looks for one: a cent of credit pays for none of them."""
    costs: dict[int, int] = {}
    upstream.always(Counting(costs))
    with open_account(served, AMPLE_NANO if is_capped else CENT_NANO) as account:
        key = served.create_key(account.email, cap=Cap(CENT_NANO, "total")) if is_capped else account.api.key
        bodies = [json.dumps({**ATTACKS[attack], "seed": n, "max_tokens": 16}).encode() for n in range(AT_ONCE)]
        replies = send_all(RawClient(served.port, key), bodies)
        assert account.spent_nano == sum(costs.values()) == 0
    assert [reply.status for reply in replies] == [402] * AT_ONCE
    assert served.process.metric(SHORT) == 0
