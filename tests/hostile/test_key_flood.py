"""2. A flood of unknown keys from many addresses does not keep out good keys that the process has not seen yet.

The service trusts `x-forwarded-for` from its own machine, as behind a proxy.
"""

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from cadenza.control.account.accounts import create_account, get_owner
from cadenza.control.keys import KeyOrder, create_key
from cadenza.core.codes import make_key
from cadenza.store.address import open_store
from cadenza.store.migrate import migrate
from tests.load import ConnectionPool, TimedReply
from tests.postgres import running_postgres
from tests.service import EMAIL, Service
from tests.service_config import classes_spec

ADDRESSES = 1000
CONNECTIONS = 64
GOOD_KEYS = 6
GUESSES_BETWEEN = 350  # guesses answered before each good key
TRIES = 3  # of a good key: where the process is held up, the store does not answer in time, which is a 429
UNUSED_UPSTREAM = "http://127.0.0.1:9/v1"
pytestmark = pytest.mark.slow(reason="a flood")


class Flood(msgspec.Struct):
    """What the guesses and the good keys were answered in the end, and how many guesses a second there were."""

    guesses: Counter[int]
    good: list[TimedReply]
    per_s: float


def ask_models(key: str, address: str) -> bytes:
    head = f"GET /v1/models HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {key}\r\n"
    return f"{head}x-forwarded-for: {address}\r\n\r\n".encode()


def addresses() -> Iterator[str]:
    """Each is of a network of its own: the addresses of one network have a limit together."""
    return itertools.cycle([f"203.{number >> 8}.{number & 255}.7" for number in range(ADDRESSES)])


class Attacker:
    """Sends guesses from many addresses, on connections that each carry one at a time, as fast as they are answered."""

    def __init__(self, port: int, guesses: list[bytes]) -> None:
        self.answered = Counter[int]()
        self._pool = ConnectionPool(port)
        self._guesses = iter(guesses)
        self._progress = asyncio.Condition()

    async def run(self) -> None:
        await asyncio.gather(*(self._send() for _ in range(CONNECTIONS)))
        self._pool.close()

    async def wait_for(self, count: int) -> None:
        """Return once so many guesses were answered."""
        async with self._progress:
            await self._progress.wait_for(lambda: self.answered.total() >= count)

    async def _send(self) -> None:
        for guess in self._guesses:
            self.answered[(await self._pool.ask(guess)).status] += 1
            async with self._progress:
                self._progress.notify_all()


async def flood(port: int, good_keys: list[str]) -> Flood:
    """Each good key comes once, from an address of its own, while the flood goes on."""
    count = GUESSES_BETWEEN * (len(good_keys) + 2)
    attacker = Attacker(port, [ask_models(make_key(), address) for address in itertools.islice(addresses(), count)])
    pool, good, began_s = ConnectionPool(port), list[TimedReply](), time.perf_counter()
    attack = asyncio.create_task(attacker.run())
    for number, key in enumerate(good_keys, 1):
        await attacker.wait_for(number * GUESSES_BETWEEN)
        for _ in range(TRIES):
            reply = await pool.ask(ask_models(key, f"198.51.100.{number}"))
            if reply.status != 429:
                break
        good.append(reply)
    await attack
    pool.close()
    return Flood(attacker.answered, good, count / (time.perf_counter() - began_s))


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The address of an empty store."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/cadenza.db"
        return
    with running_postgres() as server, server.database() as address:
        yield address


async def fill(url: str) -> list[str]:
    """Make an account with keys in a new store."""
    store, now_ms = open_store(url), time.time_ns() // 1_000_000
    await migrate(store)
    await create_account(store, EMAIL, 0, "forte", now_ms)
    made = [await create_key(store, await get_owner(store, EMAIL), KeyOrder("test"), now_ms) for _ in range(GOOD_KEYS)]
    await store.close()
    return [key for key, _ in made]


def test_good_keys_get_in_during_a_flood(url: str) -> None:
    """All good keys are served right after a start, and nearly all guesses are looked up, which is a 401."""
    good_keys, spec = asyncio.run(fill(url)), classes_spec(UNUSED_UPSTREAM)
    with Service(msgspec.structs.replace(spec, store_url=url)) as service:
        seen = asyncio.run(flood(service.port, good_keys))
    statuses = Counter(reply.status for reply in seen.good)
    assert statuses == {200: GOOD_KEYS}, f"{seen.per_s:,.0f} guesses a second were answered {dict(seen.guesses)}"
    assert seen.guesses.keys() <= {401, 429}
    assert seen.guesses[401] > 0.8 * seen.guesses.total(), dict(seen.guesses)
