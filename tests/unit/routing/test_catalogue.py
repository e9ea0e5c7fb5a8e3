"""Classes: which serves a request, which are listed, and what is said of those that are not."""

from collections.abc import Mapping

import pytest

from cadenza.core.errors import InvalidRequest, NotFound
from cadenza.core.money import Price
from cadenza.core.records import Plan, Principal, Route
from cadenza.gateway.compose import Character
from cadenza.routing.catalogue import Catalogue

ROUTES = {
    class_id: (Route("acme", f"{class_id}-a", 1000, 100), Route("acme", f"{class_id}-b", 1000, 100, order=1))
    for class_id in ("fortissimo", "forte", "mezzo")
}


PRICES = {"forte": Price(1_070, 3_450)}
CHARACTERS = {"forte": Character("Be brief.")}


def catalogue(*class_ids: str) -> Catalogue:
    return with_routes({class_id: ROUTES[class_id] for class_id in class_ids or ROUTES})


def with_routes(routes: Mapping[str, tuple[Route, ...]]) -> Catalogue:
    return Catalogue(routes, CHARACTERS, PRICES)


def principal(preferred_class: str = "forte") -> Principal:
    return Principal("key_a", "acct_a", frozenset({"inference"}), preferred_class)


@pytest.mark.parametrize("class_id", ["mezzo", "forte", "fortissimo"])
def test_a_class_is_served_by_its_routes_in_order(class_id: str) -> None:
    """The plan names the class that was asked for and all of its routes, first things first."""
    assert catalogue().plan(class_id, principal("mezzo")) == Plan.of(class_id, ROUTES[class_id])


@pytest.mark.parametrize("asked", [None, "auto"])
@pytest.mark.parametrize("preferred", ["mezzo", "forte", "fortissimo"])
def test_auto_is_the_class_that_the_account_prefers(asked: str | None, preferred: str) -> None:
    """`auto` and no model at all come to the same: the account's class, never `auto` itself."""
    assert catalogue().plan(asked, principal(preferred)).class_id == preferred


@pytest.mark.parametrize(
    ("there", "served"), [(("mezzo", "forte"), "forte"), (("mezzo",), "mezzo"), (("fortissimo",), "fortissimo")]
)
def test_auto_makes_do_with_what_there_is(there: tuple[str, ...], served: str) -> None:
    """Where the preferred class has no routes the default serves, and without it the first there is."""
    missing = "mezzo" if there == ("fortissimo",) else "fortissimo"
    assert catalogue(*there).plan("auto", principal(missing)).class_id == served


@pytest.mark.parametrize("asked", ["gpt-4o", "", "FORTE", " forte", "loopback-large"])
def test_an_unknown_model_is_refused_with_those_there_are(asked: str) -> None:
    """A 400 that names every usable id and does not repeat what was asked."""
    with pytest.raises(
        InvalidRequest, match=r"no model of that name here\. Use one of: auto, mezzo, forte, fortissimo\."
    ):
        catalogue().plan(asked, principal())


def test_a_class_without_routes_is_no_model() -> None:
    """A class that the operator has not configured is refused and not offered."""
    with pytest.raises(InvalidRequest, match=r"Use one of: auto, forte\."):
        catalogue("forte").plan("mezzo", principal())


def test_piano_is_reserved() -> None:
    """A chat request for `piano` is told that the name is reserved."""
    with pytest.raises(InvalidRequest, match="'piano' is reserved"):
        catalogue().plan("piano", principal())


def test_models_are_listed_in_their_order() -> None:
    """`auto` first, then the classes from light to strong, however the config has them."""
    listed = catalogue().models()
    assert [model.id for model in listed.data] == ["auto", "mezzo", "forte", "fortissimo"]
    assert {(model.object, model.owned_by) for model in listed.data} == {("model", "cadenza")}


def test_a_class_without_routes_is_not_listed() -> None:
    """Empty routes are as good as none."""
    listed = with_routes({"mezzo": (), "forte": ROUTES["forte"]}).models()
    assert [model.id for model in listed.data] == ["auto", "forte"]


def test_the_time_of_creation_is_stable() -> None:
    """Two starts of the service say the same."""
    assert catalogue().models() == catalogue().models()
    assert catalogue().model("forte").created == 1_767_225_600


@pytest.mark.parametrize("class_id", ["auto", "mezzo", "forte", "fortissimo"])
def test_a_listed_model_can_be_had_alone(class_id: str) -> None:
    """One model is the same object as in the list."""
    assert catalogue().model(class_id) in catalogue().models().data


@pytest.mark.parametrize("class_id", ["piano", "gpt-4o", "", "forte/x"])
def test_a_model_that_is_not_listed_is_not_found(class_id: str) -> None:
    """404 for unknown ids, the reserved one included."""
    with pytest.raises(NotFound, match="Use one of: auto, mezzo, forte, fortissimo"):
        catalogue().model(class_id)


def test_a_service_without_routes_does_not_start() -> None:
    """A catalogue with nothing in it is a fault of our own."""
    with pytest.raises(AssertionError, match="without a single route"):
        with_routes({"forte": ()})
