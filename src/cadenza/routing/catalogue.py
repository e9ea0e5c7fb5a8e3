"""The classes of the service: which class serves a request, its routes, and the model ids that a client may use."""

from collections.abc import Iterator, Mapping

import msgspec

from cadenza.core.aliases import NO_ALIASES, Aliases
from cadenza.core.chat import Model, ModelList
from cadenza.core.errors import ContextOverflow, InvalidRequest, NotFound, NotTaken
from cadenza.core.money import Price
from cadenza.core.price_schedules import PriceSchedule, show_changes, show_price
from cadenza.core.rates import Limits
from cadenza.core.records import AUTO, CLASSES, DEFAULT_CLASS, RESERVED_CLASS, Plan, Principal, Route
from cadenza.core.tokens import OUTPUT_TOKENS_MIN, output_room
from cadenza.routing.prompt import Character, PromptSize
from cadenza.upstreams.base import Upstream

MISSING_CAPABILITY = {
    "custom_tools": "tools: the model behind '{class_id}' takes no tools of type 'custom'. Use type 'function'.",
    "vision": "messages: the model behind '{class_id}' takes no parts of type 'image_url'. Leave them out.",
    "audio": "messages: the model behind '{class_id}' takes no parts of type 'input_audio'. Leave them out.",
    "files": "messages: the model behind '{class_id}' takes no parts of type 'file'.",
}
CREATED = 1_767_225_600  # 2026-01-01: class ids are stable, and so is their creation time


class ServedClass(msgspec.Struct, frozen=True):
    """A version of a class: its plan, its character and its prices."""

    plan: Plan
    character: Character
    prices: PriceSchedule
    version: int | None = None  # its number in the store


class Catalogue:
    """The classes that have routes, in the order in which they are listed."""

    def __init__(self, classes: Mapping[str, ServedClass], aliases: Aliases = NO_ALIASES) -> None:
        self._classes = {class_id: classes[class_id] for class_id in CLASSES if class_id in classes}
        assert self._classes, "a service without a single route must not start"
        self.ids, self.aliases = (AUTO, *self._classes), aliases
        # The cheapest answer, now or after a change of price.
        self.least_nano = min(served.prices.least_quote(1, 1) for served in self._classes.values())

    def find(self, asked: str | None, principal: Principal) -> ServedClass:
        """The class that a chat request names; without a name, or for `auto`, the one that the account prefers."""
        class_id = self.preferred(principal.preferred_class) if asked is None or asked == AUTO else asked
        if served := self._classes.get(class_id):
            return served
        if class_id == RESERVED_CLASS:
            raise InvalidRequest(f"The model '{RESERVED_CLASS}' is reserved and not available. {self._usable()}")
        if (aliased := self.aliases.resolve(class_id, self.ids, self.preferred)) != class_id:
            return self.find(aliased, principal)
        raise InvalidRequest(f"This model does not exist. {self._usable()}")

    def served(self) -> tuple[ServedClass, ...]:
        """The classes that have routes, in the order in which they are listed."""
        return tuple(self._classes.values())

    def routes(self) -> Iterator[Route]:
        return (route for served in self._classes.values() for route in served.plan.routes)

    def able_classes(self, needs: frozenset[str]) -> tuple[str, ...]:
        """The classes with a route that has all of these capabilities."""
        return tuple(
            class_id
            for class_id, served in self._classes.items()
            if any(all(getattr(route, need) for need in needs) for route in served.plan.routes)
        )

    def models(self, now_ms: int) -> ModelList:
        return ModelList(data=[self.model(class_id, now_ms) for class_id in self.ids])

    def model(self, class_id: str, now_ms: int) -> Model:
        if class_id == AUTO:
            return Model(id=AUTO, created=CREATED)
        if class_id not in self._classes:
            raise NotFound(f"This model does not exist. {self._usable()}")
        prices = self._classes[class_id].prices
        pricing, changes = show_price(prices.at(now_ms)), show_changes(prices.after(now_ms))
        return Model(id=class_id, created=CREATED, pricing=pricing, pricing_changes=changes)

    def preferred(self, class_id: str) -> str:
        """The class that an account prefers. If it has no routes: the default class, else the first that has."""
        wanted = (class_id, DEFAULT_CLASS, *self._classes)
        return next(class_id for class_id in wanted if class_id in self._classes)

    def _usable(self) -> str:
        return f"Use one of: {', '.join(self.ids)}."


class Snapshot(msgspec.Struct, frozen=True):
    """Everything that a reload can change. A chat request takes the current one and keeps it to its end."""

    catalogue: Catalogue
    upstreams: Mapping[str, Upstream]
    limits: Limits
    costs: Mapping[tuple[str, str], Price] = {}  # of a token, by provider and model, where they are known


def has_ample_room(plan: Plan, prompt_tokens: int, output_tokens: int) -> bool:
    """Whether every route has room for all of the output that it can give, and for the shortest useful answer."""
    for route in plan.routes:
        room_tokens, most_tokens = output_room(route, prompt_tokens), route.max_output_tokens
        longest_tokens = output_tokens if output_tokens < most_tokens else most_tokens
        if room_tokens < longest_tokens or room_tokens < OUTPUT_TOKENS_MIN:
            return False
    return True


async def routes_that_fit(plan: Plan, prompt: PromptSize, output_tokens: int) -> Plan:
    """The plan without the routes whose window is too small for the prompt and the shortest useful answer."""
    if has_ample_room(plan, prompt.exact or prompt.bound, output_tokens):
        return plan
    prompt_tokens = await prompt.count()
    routes = tuple([route for route in plan.routes if output_room(route, prompt_tokens) >= OUTPUT_TOKENS_MIN])
    if len(routes) == len(plan.routes):
        return plan
    if not routes:
        raise ContextOverflow(plan.context_tokens, prompt_tokens)
    return Plan.of(plan.class_id, routes)


def routes_that_take(plan: Plan, needs: frozenset[str], able_classes: tuple[str, ...] = (), note: str = "") -> Plan:
    """The plan without the routes that lack a capability: images, audio, files or custom tools.

    If none is left: 400, which ends with the note and the classes that take all of it.
    """
    routes = plan.routes
    for need in sorted(needs):
        routes = tuple([route for route in routes if getattr(route, need)])
        if not routes:
            message = MISSING_CAPABILITY[need].format(class_id=plan.class_id) + note
            raise NotTaken(message, plan.class_id, need, able_classes)
    return plan if len(routes) == len(plan.routes) else Plan.of(plan.class_id, routes)
