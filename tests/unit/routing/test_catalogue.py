"""Classes: which one serves a request, which are listed, and how the others are refused."""

import msgspec
import pytest

from cadenza.core.errors import NotTaken
from cadenza.core.money import Price
from cadenza.core.prices import PriceSchedule
from cadenza.core.records import Plan, Principal, Route
from cadenza.routing.catalogue import Catalogue, ServedClass, routes_that_take
from cadenza.routing.prompt import Character

NOW_MS = 1_767_225_600_000
SERVED = {
    class_id: ServedClass(
        Plan.of(
            class_id,
            (Route("acme", f"{class_id}-a", 1000, 100), Route("acme", f"{class_id}-b", 1000, 100, order=1)),
        ),
        Character(f"You are {class_id}."),
        PriceSchedule(Price(number, number)),
    )
    for number, class_id in enumerate(("fortissimo", "forte", "mezzo"))
}


def catalogue(*class_ids: str) -> Catalogue:
    return Catalogue({class_id: SERVED[class_id] for class_id in class_ids or SERVED})


def principal(preferred_class: str = "forte") -> Principal:
    return Principal("key_a", "acct_a", frozenset({"inference"}), preferred_class)


@pytest.mark.parametrize(
    ("configured", "served"), [(("mezzo", "forte"), "forte"), (("mezzo",), "mezzo"), (("fortissimo",), "fortissimo")]
)
def test_auto_falls_back_to_a_class_that_has_routes(configured: tuple[str, ...], served: str) -> None:
    """If the preferred class has no routes, the default class serves, and without that the first configured one."""
    missing = "mezzo" if configured == ("fortissimo",) else "fortissimo"
    assert catalogue(*configured).find("auto", principal(missing)).plan.class_id == served


def test_a_class_without_routes_is_not_listed() -> None:
    """Only `auto` and the configured classes are offered."""
    assert [model.id for model in catalogue("forte").models(NOW_MS).data] == ["auto", "forte"]


def test_the_routes_of_all_classes_are_listed() -> None:
    """Every route of every class, class by class and in the order of its plan."""
    assert [route.model for route in catalogue("forte", "mezzo").routes()] == [
        "mezzo-a",
        "mezzo-b",
        "forte-a",
        "forte-b",
    ]


def test_a_service_without_routes_does_not_start() -> None:
    """An empty catalogue is an error of our own."""
    with pytest.raises(AssertionError, match="without a single route"):
        Catalogue({})


def test_a_refused_image_names_the_classes_that_take_it() -> None:
    """Those with a route that takes everything the request has; a class with two half-able routes is not one."""
    seeing = Plan.of("forte", (Route("acme", "a", 1000, 100, vision=True), Route("acme", "b", 1000, 100, audio=True)))
    classes = Catalogue({**SERVED, "forte": msgspec.structs.replace(SERVED["forte"], plan=seeing)})
    assert classes.able_classes(frozenset({"vision"})) == ("forte",)
    assert classes.able_classes(frozenset({"vision", "audio"})) == ()
    with pytest.raises(NotTaken, match=r"'mezzo' takes no parts .* Classes that take them: forte\.$") as refused:
        routes_that_take(SERVED["mezzo"].plan, frozenset({"vision"}), ("forte",))
    assert (refused.value.class_id, refused.value.need) == ("mezzo", "vision")


def with_canary(share: int, number: int = 2) -> Catalogue:
    candidate = Plan.of("forte", (Route("other", "candidate", 1000, 100, vision=True),))
    tried = msgspec.structs.replace(SERVED["forte"], plan=candidate, version=number)
    served = msgspec.structs.replace(SERVED["forte"], version=1, candidate=tried, share=share)
    return Catalogue({**SERVED, "forte": served})


def versions_of(classes: Catalogue, accounts: int = 1000) -> list[int | None]:
    """The version that serves each of so many accounts."""
    asking = (Principal("key_a", f"acct_{number}", frozenset(), "forte") for number in range(accounts))
    return [classes.find("auto", one).version for one in asking]


def test_a_canary_is_sticky_by_account() -> None:
    """The candidate serves its share of the accounts, always the same ones, and a larger share keeps them."""
    small, again, large = (versions_of(with_canary(share)) for share in (5, 5, 25))
    assert small == again
    assert 20 < small.count(2) < 90
    assert 180 < large.count(2) < 330
    assert all(later == 2 for before, later in zip(small, large, strict=True) if before == 2)


def test_the_routes_of_a_candidate_count() -> None:
    """Health and the operator's pages see them, and a class takes images only if both of its versions do."""
    classes = with_canary(5)
    assert ("other", "candidate") in [(route.provider, route.model) for route in classes.routes()]
    assert classes.able_classes(frozenset({"vision"})) == ()
