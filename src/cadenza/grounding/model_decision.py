"""Asks the model of a class whether a message needs the web, for classes that decide so instead of by a score.

It runs on the routes of the class, counts for their health, and has a few tokens, which are charged like those of a
chat. If the account cannot pay for it, if it fails, or if it says neither yes nor no, the score decides. A client that
leaves meanwhile pays for its prompt, if a route was asked; a model that does not answer in time costs nothing.
"""

import asyncio
from collections.abc import Sequence

import msgspec

from cadenza.core.errors import CadenzaError
from cadenza.core.records import Route, Usage
from cadenza.core.sent import counted_texts
from cadenza.core.tokens import believable
from cadenza.grounding.charges import AlreadyCharged, Charges, NotAffordable
from cadenza.grounding.search.intent.model_decision import DECISION_TOKENS, decision_messages, read_decision
from cadenza.routing.catalogue import ServedClass, Snapshot
from cadenza.routing.continuation import open_reply
from cadenza.routing.dispatch import Dispatch, Dispatcher
from cadenza.routing.prompt import Character, PromptSize
from cadenza.upstreams.base import Ask, Collector

NO_CHARACTER = Character("")
SAMPLING = {"temperature": msgspec.Raw(b"0")}


class ModelDecision:
    """The decision for one request."""

    def __init__(self, dispatcher: Dispatcher, snapshot: Snapshot, served: ServedClass, charges: Charges) -> None:
        self._dispatcher = dispatcher
        self._charges = charges
        self._upstreams = snapshot.upstreams
        self._served = served

    async def __call__(self, asked: Sequence[str], limit_s: float) -> bool | None:
        """Whether the last of these messages needs the web; None if the model does not say in time."""
        try:
            return read_decision(await self._ask(asked, limit_s))
        except (CadenzaError, NotAffordable, AlreadyCharged, TimeoutError):
            return None

    async def _ask(self, asked: Sequence[str], limit_s: float) -> str:
        messages = decision_messages(asked)
        raw = [msgspec.Raw(msgspec.json.encode(message)) for message in messages]
        size_bytes = sum(len(bytes(message)) for message in raw)
        prompt = PromptSize(self._dispatcher.tokenizer, NO_CHARACTER, lambda: counted_texts(raw, {}, {}), size_bytes)
        served, answer = self._served, Collector()
        at_most = Usage(await prompt.exact(), DECISION_TOKENS, estimated=True)
        what = messages[-1]["content"]
        async with self._charges.charge(served.plan.class_id, served.price, at_most, what) as extra:
            extra.usage = None

            def note_asked(route: Route | None) -> None:
                extra.usage = msgspec.structs.replace(at_most, completion_tokens=0) if route else None

            def routed(route: Route) -> None:
                extra.provider, extra.model = route.provider, route.model

            ask = Ask(raw, SAMPLING, DECISION_TOKENS, stream=False, prompt_tokens=size_bytes, on_asked=note_asked)
            wanted = Dispatch(served.plan, ask, prompt, self._upstreams, self._charges.key_id, self._charges.request_id)
            async with asyncio.timeout(limit_s), open_reply(self._dispatcher, wanted, routed) as reply:
                await reply.deliver(answer)
            extra.usage = at_most
            if said := answer.usage:
                extra.usage, _ = believable(said, at_most.prompt_tokens, prompt.believable_tokens, DECISION_TOKENS)
        return answer.text
