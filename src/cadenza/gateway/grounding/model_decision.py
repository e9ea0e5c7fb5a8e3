"""Asks the model of a class whether a message needs the web, for classes that decide so instead of by a score.

The call is the operator's: it is not charged to the account. It runs on the routes of the class, counts for their
health, and has a few tokens. If it fails, or says neither yes nor no, the score decides.
"""

import asyncio
from collections.abc import Sequence

import msgspec

from cadenza.core.errors import CadenzaError
from cadenza.gateway.grounding.search.intent.model_decision import decision_messages, read_decision
from cadenza.gateway.request import ApiRequest
from cadenza.routing.catalogue import ServedClass, Snapshot
from cadenza.routing.continuation import open_reply
from cadenza.routing.dispatch import Dispatch, Dispatcher
from cadenza.routing.prompt import PromptSize
from cadenza.routing.sent import counted_texts
from cadenza.upstreams.base import Ask, Piece

ANSWER_TOKENS = 16
SAMPLING = {"temperature": msgspec.Raw(b"0")}


class ModelDecision:
    """The decision for one request."""

    def __init__(self, dispatcher: Dispatcher, snapshot: Snapshot, served: ServedClass, request: ApiRequest) -> None:
        self._dispatcher = dispatcher
        self._upstreams = snapshot.upstreams
        self._served = served
        self._request = request

    async def __call__(self, asked: Sequence[str], limit_s: float) -> bool | None:
        """Whether the last of these messages needs the web; None if the model does not say in time."""
        try:
            async with asyncio.timeout(limit_s):
                return read_decision(await self._ask(asked))
        except (CadenzaError, TimeoutError):
            return None

    async def _ask(self, asked: Sequence[str]) -> str:
        messages = decision_messages(asked)
        raw = [msgspec.Raw(msgspec.json.encode(message)) for message in messages]
        size_bytes = sum(len(bytes(message)) for message in raw)
        prompt = PromptSize(
            self._dispatcher.tokenizer, self._served.character, lambda: counted_texts(raw, {}, {}), size_bytes
        )
        ask = Ask(messages=raw, sampling=SAMPLING, max_tokens=ANSWER_TOKENS, stream=False, prompt_tokens=size_bytes)
        request = self._request
        wanted = Dispatch(
            self._served.plan, ask, prompt, self._upstreams, request.principal.key_id, request.record.request_id
        )
        answer = Answer()
        async with open_reply(self._dispatcher, wanted, lambda _: None) as reply:
            await reply.deliver(answer)
        return answer.text


class Answer:
    """The sink of a short answer."""

    def __init__(self) -> None:
        self.text = ""

    def take(self, piece: Piece) -> None:
        self.text += piece.content

    def flush(self) -> bool:
        return True

    async def drain(self) -> None:
        """Never congested."""
