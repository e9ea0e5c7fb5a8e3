"""Which version of a class is served: the config's or the store's, resolved by one process or by several at once."""

import asyncio
import signal

import msgspec
import pytest

from cadenza.control.class_versions import ServingProcess, read_served, resolve
from cadenza.core.classes import ClassState, ClassVersion, ConfiguredClass
from cadenza.core.errors import ControlError
from cadenza.core.records import RetentionBy, Route
from cadenza.store.address import open_store
from cadenza.store.store import Store, Transaction
from cadenza.store.tables import audit_events, class_versions
from tests.class_switch import die_in_switch, serve_version, switch
from tests.store.conftest import WAIT_S
from tests.store.forked import forked

PROVIDERS: dict[str, RetentionBy] = {"acme": "contract", "other": "contract"}
LARGE, LARGER = Route("acme", "large", 1000, 100), Route("acme", "larger", 1000, 100)
OTHER = Route("other", "one", 1000, 100)


def configured(*routes: Route, is_pinned: bool = True, character: str = "Be brief.") -> dict[str, ConfiguredClass]:
    version = ClassVersion(class_id="forte", routes=routes or (LARGE,), character=character)
    return {"forte": ConfiguredClass(version, is_pinned)}


def given_version(given: dict[str, ConfiguredClass], number: int) -> ClassVersion:
    return msgspec.structs.replace(given["forte"].version, number=number)


async def resolve_forte(store: Store, given: dict[str, ConfiguredClass] | None = None, now_ms: int = 1) -> ClassState:
    served = await resolve(store, configured() if given is None else given, PROVIDERS, now_ms)
    return served["forte"]


async def adopt(store: Store) -> None:
    """The store decides from now on."""
    [state] = await class_versions.read_states(store)
    adopted = msgspec.structs.replace(state, is_adopted=True)
    assert await store.transact(lambda tx: class_versions.change_state(tx, adopted, 2))


async def test_the_first_start_records_version_1(store: Store) -> None:
    """It is the config's, and a later start with the same config changes nothing."""
    first = await resolve_forte(store)
    assert (first.version.number, first.version.routes, first.version.origin) == (1, (LARGE,), "config")
    assert await resolve_forte(store, now_ms=9) == first
    assert await read_served(store, configured()) == {"forte": first}


async def test_a_changed_config_is_a_new_version(store: Store) -> None:
    """Routes or character: both make the next number. Going back finds the old number, and the history says so."""
    numbers = [
        (await resolve_forte(store, given)).version.number
        for given in (configured(), configured(LARGER), configured(character="Be long."), configured(LARGER))
    ]
    assert numbers == [1, 2, 3, 2]
    [event] = await audit_events.list_newest(store)
    assert (event.event, event.subject, event.detail) == ("class.config", "forte", "version 2 again, instead of 3")
    [state] = await class_versions.read_states(store)
    assert (state.version.number, state.previous) == (2, 3)


async def test_a_class_that_was_adopted_is_the_stores(store: Store) -> None:
    """The routes of the config are not used, and a class that the config no longer has is still served."""
    await resolve_forte(store)
    await adopt(store)
    assert (await resolve_forte(store, configured(LARGER))).version.number == 1
    assert (await resolve_forte(store, {})).version.number == 1


async def test_a_class_that_the_config_dropped_is_not_served(store: Store) -> None:
    """Unless it was adopted, a class is served only while the config has it."""
    await resolve_forte(store)
    assert await resolve(store, {}, PROVIDERS, 2) == {}
    assert await read_served(store, {}) == {}


async def test_a_class_with_settings_but_no_routes_must_be_adopted(store: Store) -> None:
    """Until then its name stops the start, and nothing is recorded. Then the store has its routes."""
    await resolve_forte(store)
    before = await class_versions.read_states(store)
    with pytest.raises(ControlError, match="The class 'forte' has no routes"):
        await resolve(store, {}, PROVIDERS, 2, named=["forte"])
    assert await class_versions.read_states(store) == before
    await adopt(store)
    served = await resolve(store, {}, PROVIDERS, 3, named=["forte"])
    assert served["forte"].version.routes == (LARGE,)


async def test_a_class_that_is_not_pinned_is_the_stores_after_a_promotion(store: Store) -> None:
    """Until then it follows the config, so that its character can be edited."""
    assert (await resolve_forte(store, configured(is_pinned=False))).version.number == 1
    edited = configured(is_pinned=False, character="Be kind.")
    assert (await resolve_forte(store, edited)).version.number == 2
    [state] = await class_versions.read_states(store)

    def promote(tx: Transaction) -> bool:
        version = class_versions.add(tx, state.version.with_candidate(OTHER))
        return class_versions.change_state(tx, msgspec.structs.replace(state, version=version), 2)

    assert await store.transact(promote)
    assert (await resolve_forte(store, configured(is_pinned=False))).version.routes == (OTHER,)
    [state] = await class_versions.read_states(store)
    rolled_back = msgspec.structs.replace(state, version=given_version(edited, 2))
    assert await store.transact(lambda tx: class_versions.change_state(tx, rolled_back, 3))
    assert (await resolve_forte(store, configured(is_pinned=False))).version.number == 2, "an operator has decided"
    assert (await resolve_forte(store, configured())).version.number == 1, "routes in the config pin the class"


async def test_a_command_with_another_config_changes_nothing_that_is_served(store: Store) -> None:
    """An evaluation records the routes of its own config as a version; the service goes on."""
    await resolve_forte(store, configured(is_pinned=False))
    await switch(store, route=OTHER)
    [running] = await class_versions.read_states(store)
    handed_back = msgspec.structs.replace(running, is_adopted=False)
    assert await store.transact(lambda tx: class_versions.change_state(tx, handed_back, 2))
    [before] = await class_versions.read_states(store)
    given = configured()
    other = msgspec.structs.replace(given["forte"].version, character="another")
    found = await resolve(store, {"forte": ConfiguredClass(other, is_pinned=True)}, PROVIDERS, 3, process=None)
    assert (found["forte"].version.number, found["forte"].version.character) == (3, "another")
    assert await class_versions.read_states(store) == [before]


async def test_processes_with_different_configs_do_not_take_turns(store: Store) -> None:
    """The state says what the last one to start serves; a reload of the other changes neither it nor the history."""
    replaced = list[tuple[int, int]]()

    async def load(given: dict[str, ConfiguredClass], states: dict[str, ClassState]) -> dict[str, ClassState]:
        process = ServingProcess(states, lambda old, new: replaced.append((old.version.number, new.version.number)))
        return await resolve(store, given, PROVIDERS, 1, process=process)

    one, two = configured(), configured(LARGER)
    first = await load(one, {})
    second = await load(two, {})
    for _ in range(2):
        first, second = await load(one, first), await load(two, second)
    assert [state["forte"].version.number for state in (first, second)] == [1, 2]
    assert (replaced, await audit_events.list_newest(store)) == ([(1, 2)], [])
    assert (await load(one, {}))["forte"].version.number == 1
    [state] = await class_versions.read_states(store)
    assert (replaced, state.version.number) == ([(1, 2), (2, 1)], 1)


async def test_a_class_that_is_handed_back_is_the_configs_again(store: Store) -> None:
    """A process that served the store's version writes its own into the state."""
    first = {"forte": await resolve_forte(store)}
    await switch(store, route=OTHER)
    adopted = await resolve(store, configured(), PROVIDERS, 2, process=ServingProcess(first))
    assert adopted["forte"].version.routes == (OTHER,)
    handed_back = msgspec.structs.replace(adopted["forte"], is_adopted=False)
    assert await store.transact(lambda tx: class_versions.change_state(tx, handed_back, 3))
    again = await resolve(store, configured(), PROVIDERS, 4, process=ServingProcess(adopted))
    assert again["forte"].version.number == 1
    assert [one.version.number for one in await class_versions.read_states(store)] == [1]


async def test_a_missing_provider_is_named(store: Store) -> None:
    """Nothing is recorded then; the sentence says what to define, or how to go back."""
    await resolve_forte(store)
    await switch(store, route=OTHER)
    mezzo = ClassVersion(class_id="mezzo", routes=(LARGE,), character="")
    given = {**configured(), "mezzo": ConfiguredClass(mezzo, is_pinned=True)}
    with pytest.raises(ControlError, match=r"needs the provider 'other'.*'cadenza class rollback forte'"):
        await resolve(store, given, {"acme": "contract"}, 3)
    assert [state.version.class_id for state in await class_versions.read_states(store)] == ["forte"]


async def test_a_provider_that_enforces_too_little_is_named(store: Store) -> None:
    """A version that the store decides about is not served if its route demands what its provider does not enforce."""
    demanding = msgspec.structs.replace(OTHER, retention_by="api")
    await resolve_forte(store)
    await switch(store, route=demanding)
    with pytest.raises(ControlError, match="demands zero retention by API of the provider 'other', whose API does not"):
        await resolve(store, configured(), PROVIDERS, 3)
    served = await resolve(store, configured(), PROVIDERS | {"other": "api"}, 3)
    assert served["forte"].version.routes[0].retention_by == "api"


async def test_processes_that_start_together_agree(store: Store, url: str) -> None:
    """Several that seed the same store, or load the same new config, end with one version each time."""
    stores = [open_store(url, WAIT_S) for _ in range(4)]
    try:
        for number, given in enumerate((configured(), configured(LARGER)), start=1):
            states = await asyncio.gather(*(resolve_forte(one, given) for one in stores))
            assert [state.version.number for state in states] == [number] * len(stores)
    finally:
        for one in stores:
            await one.close()
    assert [one.number for one in await class_versions.list_newest(store, "forte")] == [2, 1]


async def test_a_promotion_during_a_start_is_not_undone(store: Store, url: str) -> None:
    """Starts that race with switches leave what the last switch says."""
    await resolve_forte(store)
    other = open_store(url, WAIT_S)
    try:
        for _ in range(5):
            version, _ = await asyncio.gather(switch(store, route=OTHER), resolve_forte(other, configured(LARGER)))
            await serve_version(store, 1)
            assert (await resolve_forte(other, configured(LARGER))).version.number == 1
            await switch(store, route=OTHER)
            assert (await resolve_forte(other, configured(LARGER))).version == version
    finally:
        await other.close()


@pytest.mark.parametrize(("when", "number"), [("before", 1), ("after", 2)])
async def test_kill_9_in_a_switch_leaves_one_whole_version(store: Store, url: str, when: str, number: int) -> None:
    """Before the commit nothing has happened, after it everything has; the next switch works either way."""
    first = await resolve_forte(store)
    async with forked(die_in_switch, url, when) as process:
        assert await process.wait() == -signal.SIGKILL
    state = await resolve(store, configured(), PROVIDERS | {"loopback": "contract"}, 3)
    assert state["forte"].version.number == number
    assert (state["forte"] == first) == (when == "before")
    assert len(await class_versions.list_newest(store, "forte")) == number
    assert (await switch(store)).number == 2
