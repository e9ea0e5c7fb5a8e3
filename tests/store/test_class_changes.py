"""Adoption, promotion and rollback of classes, over SQLite and Postgres."""

import asyncio
import sys
from typing import cast

import msgspec
import pytest

from cadenza.control.class_changes import (
    ClassRules,
    PromotionOrder,
    RollbackOrder,
    adopt,
    get_situation,
    hand_back,
    list_history,
    list_versions,
    promote,
    roll_back,
)
from cadenza.core.classes import ClassState
from cadenza.core.errors import ControlError
from cadenza.core.records import Operator, Route
from cadenza.store.store import Store, Transaction
from cadenza.store.tables import class_versions
from tests.store.class_changes import NEW, NOW_MS, OLD, PINNED, RULES, VERSION, PatientStore, forced, main, seeded
from tests.store.forked import forked

ANN, BOB = Operator("ann"), Operator("bob")
ORDER = PromotionOrder(candidate=NEW)
THIRD = Route("acme", "third", 3000, 300)

__all__ = ["seeded"]


async def force(store: Store, route: Route = NEW, by: Operator = ANN) -> ClassState:
    return await promote(store, "forte", RULES, forced(route), by, NOW_MS)


async def class_state(store: Store) -> ClassState:
    state = await class_versions.read_state(store, "forte")
    assert state
    return state


async def test_a_promotion_without_a_gate_is_forced(seeded: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the part that evaluates, one sentence names its extra and --force, and so does the next step."""
    monkeypatch.setitem(sys.modules, "cadenza.parts.evaluation", None)
    with pytest.raises(ControlError, match=r"pip install 'cadenza\[evaluation\]'\. .*--force --reason TEXT"):
        await promote(seeded, "forte", RULES, ORDER, ANN, NOW_MS)
    found = await get_situation(seeded, "forte", RULES)
    assert (found.judgement.verdict, "--force --reason TEXT" in found.next_step) == ("", True)
    assert (await force(seeded)).version.number == 2


async def test_a_forced_promotion_needs_a_reason_and_shows_it(seeded: Store) -> None:
    """The reason is in the history; without one nothing is promoted."""
    for reason in ("", "two\nlines", "x" * 501):
        order = msgspec.structs.replace(ORDER, forced=reason)
        with pytest.raises(ControlError, match="reason"):
            await promote(seeded, "forte", RULES, order, ANN, NOW_MS)
    assert (await force(seeded)).version.number == 2
    assert (await list_history(seeded, "forte"))[0].detail == (
        "version 2 instead of 1: acme/huge; FORCED past the gate: a test"
    )


async def test_a_candidate_does_not_weaken_what_a_class_demands(seeded: Store) -> None:
    """Where zero retention by API serves, a candidate that does not demand it is refused, even by force."""
    rules = ClassRules(providers={"acme": "api"})
    await promote(seeded, "forte", rules, forced(msgspec.structs.replace(NEW, retention_by="api")), ANN, NOW_MS)
    with pytest.raises(ControlError, match="zero retention by API, and acme/large does not demand it"):
        await promote(seeded, "forte", rules, forced(OLD), ANN, NOW_MS)
    await roll_back(seeded, "forte", RULES, RollbackOrder(to=1), ANN, NOW_MS)
    with pytest.raises(ControlError, match=r"Version 2 .* demands zero retention by API of the provider 'acme'"):
        await roll_back(seeded, "forte", RULES, RollbackOrder(to=2), ANN, NOW_MS)


async def test_the_incumbent_is_not_promoted(seeded: Store) -> None:
    """A candidate with the settings of what is served is refused, forced or not."""
    with pytest.raises(ControlError, match="nothing to promote"):
        await force(seeded, VERSION.routes[0])


async def test_a_pinned_class_is_adopted_first(seeded: Store) -> None:
    """Promotion and rollback of what the config pins name its line, even with force; after adoption they work."""
    for _ in range(2):
        with pytest.raises(ControlError, match=r"cadenza\.toml, line 3.*cadenza class adopt forte"):
            await promote(seeded, "forte", PINNED, forced(), ANN, NOW_MS)
        with pytest.raises(ControlError, match="pins"):
            await roll_back(seeded, "forte", PINNED, RollbackOrder(), ANN, NOW_MS)
    assert (await get_situation(seeded, "forte", PINNED)).pin == PINNED.pin
    state = await adopt(seeded, "forte", PINNED, ANN, NOW_MS)
    assert (state.is_adopted, state.version.number) == (True, 1)
    with pytest.raises(ControlError, match="adopted already"):
        await adopt(seeded, "forte", PINNED, ANN, NOW_MS)
    assert (await promote(seeded, "forte", PINNED, forced(), ANN, NOW_MS)).version.number == 2
    assert not (await hand_back(seeded, "forte", PINNED, ANN, NOW_MS)).is_adopted
    with pytest.raises(ControlError, match="the store decides already"):
        await adopt(seeded, "forte", ClassRules(), ANN, NOW_MS)


async def test_a_rollback_goes_to_what_was_served(seeded: Store) -> None:
    """A second rollback needs a number, of a version whose provider the config has."""
    await force(seeded)
    await force(seeded, THIRD)
    assert (await roll_back(seeded, "forte", RULES, RollbackOrder(), ANN, NOW_MS)).version.number == 2
    with pytest.raises(ControlError, match=r"rolled back to version 2 already.*--to NUMBER"):
        await roll_back(seeded, "forte", RULES, RollbackOrder(), ANN, NOW_MS)
    with pytest.raises(ControlError, match="has no version 9"):
        await roll_back(seeded, "forte", RULES, RollbackOrder(to=9), ANN, NOW_MS)
    with pytest.raises(ControlError, match="provider 'acme'"):
        await roll_back(seeded, "forte", ClassRules(), RollbackOrder(to=3), ANN, NOW_MS)
    assert (await roll_back(seeded, "forte", RULES, RollbackOrder(to=1), ANN, NOW_MS)).version.routes == (OLD,)


async def test_the_same_candidate_has_one_version(seeded: Store) -> None:
    """Promoted again with the same routes and character it keeps its number; another setting makes a new version."""
    assert (await force(seeded)).version.number == 2
    await roll_back(seeded, "forte", RULES, RollbackOrder(), ANN, NOW_MS)
    assert (await force(seeded)).version.number == 2
    assert (await force(seeded, THIRD)).version.number == 3
    assert (await force(seeded)).version.number == 2
    assert [one.detail for one in (await list_history(seeded, "forte"))[:1]] == [
        "version 2 instead of 3: acme/huge; FORCED past the gate: a test"
    ]
    assert (await force(seeded, OLD)).version.number == 1, "a version of the config, too"
    assert (await force(seeded, msgspec.structs.replace(NEW, weight=3, max_output_tokens=100))).version.number == 4
    assert [one.number for one in await list_versions(seeded, "forte")] == [4, 3, 2, 1]


async def test_a_first_promotion_to_what_the_config_once_said_is_a_version(seeded: Store) -> None:
    """The store decides about a class since its first promotion, so that one is recorded even if it has a twin."""

    def configure(tx: Transaction) -> None:
        state = class_versions.get_state(tx, "forte")
        assert state
        third = class_versions.add(tx, msgspec.structs.replace(VERSION, routes=(THIRD,)))
        assert class_versions.change_state(tx, state.serving(third), NOW_MS)

    await seeded.transact(configure)
    state = await force(seeded, OLD)
    assert (state.version.number, state.was_promoted) == (3, True)


async def test_a_promotion_to_an_older_number_can_be_rolled_back(seeded: Store) -> None:
    """Only a rollback is not rolled back without a number, whatever the numbers of the versions are."""
    await force(seeded)
    await force(seeded, THIRD)
    assert (await force(seeded)).version.number == 2
    await force(seeded, THIRD)
    assert (await force(seeded)).version.number == 2
    assert (await roll_back(seeded, "forte", RULES, RollbackOrder(), ANN, NOW_MS)).version.number == 3
    with pytest.raises(ControlError, match=r"rolled back to version 3 already.*--to NUMBER"):
        await roll_back(seeded, "forte", RULES, RollbackOrder(), ANN, NOW_MS)


async def test_a_rollback_needs_an_older_version_that_was_served(seeded: Store) -> None:
    """A newer version, and one that a command recorded from another config, need a promotion, and so its gate."""
    await force(seeded)
    await force(seeded, THIRD)
    await roll_back(seeded, "forte", RULES, RollbackOrder(to=1), ANN, NOW_MS)
    with pytest.raises(ControlError, match=r"Version 2 .*newer than version 1.*promote forte --candidate acme/huge"):
        await roll_back(seeded, "forte", RULES, RollbackOrder(to=2), ANN, NOW_MS)
    recorded = msgspec.structs.replace(VERSION, character="Be brief.")
    await seeded.transact(lambda tx: class_versions.add(tx, recorded))
    await force(seeded, msgspec.structs.replace(THIRD, context_tokens=4000))
    with pytest.raises(ControlError, match=r"Version 4 .*was never served.*promote forte --candidate acme/large"):
        await roll_back(seeded, "forte", RULES, RollbackOrder(to=4), ANN, NOW_MS)
    for number in (3, 1):
        state = await roll_back(seeded, "forte", RULES, RollbackOrder(to=number), ANN, NOW_MS)
        assert state.version.number == number


async def test_the_built_in_default_decides_until_a_promotion(seeded: Store) -> None:
    """A class that the config does not pin, and that is not adopted, is the store's only after that."""
    assert (await get_situation(seeded, "forte", RULES)).is_built_in
    await force(seeded)
    assert not (await get_situation(seeded, "forte", RULES)).is_built_in


async def test_nothing_to_roll_back_to(seeded: Store) -> None:
    """The first version has none before it; an unknown class and one without a version say what to do."""
    with pytest.raises(ControlError, match="is the first that was served"):
        await roll_back(seeded, "forte", RULES, RollbackOrder(), ANN, NOW_MS)
    with pytest.raises(ControlError, match="the classes are mezzo, forte, fortissimo"):
        await get_situation(seeded, "fort", RULES)
    with pytest.raises(ControlError, match="records version 1"):
        await get_situation(seeded, "mezzo", RULES)


async def test_of_two_operators_one_wins(seeded: Store) -> None:
    """Both promote at once: one version is served, and the other operator is told who did what."""
    barrier = asyncio.Barrier(2)
    ann, bob = (cast("Store", PatientStore(seeded, barrier)) for _ in range(2))
    ended = await asyncio.gather(force(ann, by=ANN), force(bob, THIRD, by=BOB), return_exceptions=True)
    [lost] = [one for one in ended if isinstance(one, ControlError)]
    [won] = [one for one in ended if isinstance(one, ClassState)]
    assert str(lost).startswith(f"'forte' has changed meanwhile, so nothing was done. {won.version.actor}, 2027-")
    assert "cadenza class show forte" in str(lost)
    assert [one.number for one in await list_versions(seeded, "forte")] == [2, 1]


async def test_a_page_that_is_out_of_date_changes_nothing(seeded: Store) -> None:
    """A rollback that was decided on an older state is refused with what happened since."""
    await force(seeded)
    order = RollbackOrder(seen=1)
    with pytest.raises(ControlError, match=r"class\.promote: version 2 instead of 1"):
        await roll_back(seeded, "forte", RULES, order, BOB, NOW_MS)


@pytest.mark.parametrize("step", ["adopt", "promote", "rollback"])
async def test_kill_leaves_one_whole_version(seeded: Store, url: str, step: str) -> None:
    """A process that is killed in the middle of a change leaves the state, the versions and the log as before."""
    if step == "rollback":
        await force(seeded)

    async def all_of_it() -> tuple[ClassState, int, int]:
        state = await class_versions.read_state(seeded, "forte")
        assert state
        return state, len(await list_versions(seeded, "forte")), len(await list_history(seeded, "forte"))

    before, at = await all_of_it(), 1
    while True:
        async with forked(main, url, step, str(at)) as process:
            if await process.wait() == 0:
                break
        assert await all_of_it() == before, at
        at += 2
    after, versions, events = await all_of_it()
    assert (at > 5, events - before[2]) == (True, 1)
    assert versions - before[1] == (step == "promote")
    assert after.revision == before[0].revision + 1
