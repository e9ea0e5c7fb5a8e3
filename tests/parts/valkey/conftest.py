"""One suite over the memory of a process and Valkey. The server is real, and each test has it empty."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack

import pytest

from cadenza.core.shares import SlotLease
from cadenza.fleet.shared import MemoryState, SharedState
from cadenza.gateway.slots import Slots
from cadenza.observe import Observer, make_log
from cadenza.parts.valkey.link import ValkeyTiming
from cadenza.parts.valkey.state import ValkeyState
from tests.valkey import Valkey, running_valkey

PATIENT = ValkeyTiming(trip_s=30.0, connect_s=30.0, lease_s=60.0)  # nothing is late on a busy machine

WAIT_S = 60.0

MakeValkeyState = Callable[..., Awaitable[ValkeyState]]


class OpenSlots(Slots):
    """Slots that show how many of them may be taken here."""

    allowed = 0

    def allow(self, allowance: SlotLease) -> None:
        self.allowed = allowance.limit
        super().allow(allowance)


async def with_slots(
    make: MakeValkeyState, url: str, limit: int, timing: ValkeyTiming = PATIENT, wait_s: float = WAIT_S
) -> tuple[ValkeyState, OpenSlots]:
    """The shared state of a process, and its slots."""
    made = list[OpenSlots]()
    state = await make(url, timing, prepare=lambda state: made.append(OpenSlots(limit, wait_s, wait_s, state.lender)))
    return state, made[0]


async def enter_all(slots: Slots, key: str, count: int) -> None:
    """Take so many slots at once. Valkey may answer late: a refused request tries again."""

    async def enter() -> None:
        while not await slots.enter(key):  # noqa: ASYNC110 nobody tells
            await asyncio.sleep(0.01)

    await asyncio.wait_for(asyncio.gather(*(enter() for _ in range(count))), WAIT_S)


async def until(is_true: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not is_true():  # noqa: ASYNC110 a link tells its log, and a lender its slots
            await asyncio.sleep(0.01)


@pytest.fixture(scope="session")
def valkey_server() -> Iterator[Valkey]:
    with running_valkey() as server:
        yield server


@pytest.fixture
def valkey(valkey_server: Valkey) -> Valkey:
    """A server that other tests use too, emptied."""
    valkey_server.command("FLUSHALL")
    valkey_server.settle()
    return valkey_server


@pytest.fixture
def own_valkey() -> Iterator[Valkey]:
    """A server that the test may kill."""
    with running_valkey() as server:
        yield server


@pytest.fixture
async def started() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


@pytest.fixture
def make_valkey_state(started: AsyncExitStack) -> MakeValkeyState:
    """Makes shared states as several processes have them, each with its own connection."""

    async def make(
        url: str,
        timing: ValkeyTiming = PATIENT,
        observer: Observer | None = None,
        prepare: Callable[[ValkeyState], None] = lambda _: None,
    ) -> ValkeyState:
        state = ValkeyState(url, 1, observer or Observer(make_log()), timing)
        prepare(state)
        await state.start()
        started.push_async_callback(state.stop)
        return state

    return make


@pytest.fixture(params=["memory", "valkey"])
async def state(request: pytest.FixtureRequest, make_valkey_state: MakeValkeyState) -> SharedState:
    """A started shared state of each kind."""
    if request.param == "memory":
        return MemoryState()
    return await make_valkey_state(request.getfixturevalue("valkey").url)
