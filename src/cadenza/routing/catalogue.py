"""Classes, their routes, characters and prices: which class serves a request, which ids a client may name. Pure."""

from collections.abc import Iterator, Mapping

from cadenza.core.chat import Model, ModelList
from cadenza.core.errors import InvalidRequest, NotFound
from cadenza.core.money import Price
from cadenza.core.records import AUTO, CLASSES, DEFAULT_CLASS, RESERVED_CLASS, Plan, Principal, Route
from cadenza.core.tokens import OUTPUT_TOKENS_MIN, output_room
from cadenza.gateway.compose import Character

CREATED = 1_767_225_600  # 2026-01-01: the classes are stable, and so is the day they began


class Catalogue:
    """The classes that have routes, in the order in which they are listed."""

    def __init__(
        self,
        routes: Mapping[str, tuple[Route, ...]],
        characters: Mapping[str, Character],
        prices: Mapping[str, Price],
    ) -> None:
        self.characters = characters
        self.prices = prices
        self._plans = {class_id: Plan.of(class_id, routes[class_id]) for class_id in CLASSES if routes.get(class_id)}
        assert self._plans, "a service without a single route must not start"
        self.ids = (AUTO, *self._plans)

    def plan(self, asked: str | None, principal: Principal) -> Plan:
        """The class that a chat request asks for, and its routes by order."""
        class_id = self._preferred(principal) if asked is None or asked == AUTO else asked
        if plan := self._plans.get(class_id):
            return plan
        if class_id == RESERVED_CLASS:
            raise InvalidRequest(f"The model '{RESERVED_CLASS}' is reserved and not available. {self._usable()}")
        raise InvalidRequest(f"There is no model of that name here. {self._usable()}")

    def routes(self) -> Iterator[Route]:
        return (route for plan in self._plans.values() for route in plan.routes)

    def models(self) -> ModelList:
        return ModelList(data=[Model(id=class_id, created=CREATED) for class_id in self.ids])

    def model(self, class_id: str) -> Model:
        if class_id not in self.ids:
            raise NotFound(f"There is no model of that name here. {self._usable()}")
        return Model(id=class_id, created=CREATED)

    def _preferred(self, principal: Principal) -> str:
        """The account's class; where the operator has not configured it, the default or the first there is."""
        wanted = (principal.preferred_class, DEFAULT_CLASS, *self._plans)
        return next(class_id for class_id in wanted if class_id in self._plans)

    def _usable(self) -> str:
        return f"Use one of: {', '.join(self.ids)}."


def routes_that_fit(plan: Plan, prompt_tokens: int) -> Plan:
    """The plan without the routes whose window is too small for the prompt and the shortest of answers."""
    routes = tuple([route for route in plan.routes if output_room(route, prompt_tokens) >= OUTPUT_TOKENS_MIN])
    if len(routes) == len(plan.routes):
        return plan
    if not routes:
        largest = max(route.context_tokens for route in plan.routes)
        raise InvalidRequest(
            f"The prompt has about {prompt_tokens:,} tokens, tools included; {plan.class_id} holds {largest:,}, its "
            "answer included. Shorten it, or use a class with a larger window."
        )
    return Plan.of(plan.class_id, routes)
