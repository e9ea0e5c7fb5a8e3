"""Builds the ask that goes upstream: the character layer first, then the client's messages in their order.

Reference material is put into the messages, as `grounding` decided.

The character layer comes first in the one leading system message, so a client's `system` or `developer` message adds to
it and never replaces it. One message, because many chat templates refuse or silently drop a second one.
"""

import asyncio
from typing import Protocol

import msgspec

from cadenza.core.chat import ChatRequest, LargeTexts
from cadenza.core.records import Plan, Route
from cadenza.core.sent import sent_bytes
from cadenza.gateway.extra_fields import passed_fields
from cadenza.grounding.material import NO_GROUNDING, Grounding
from cadenza.routing.prompt import Character, PromptSize
from cadenza.upstreams.base import Ask

SLICE_BYTES = 256 * 1024


OWN_BYTES = 2048  # of a request, beside what is counted: the names of its fields, the model's, limits and switches
NAME_OWN_BYTES = 4  # of a field: the quotes of its name, a colon and a comma
MESSAGE_OWN_BYTES = 256  # of a message: names that a dialect adds, ids that it wants in another form


class Paying(Protocol):
    """What composing needs of the held credit: the limit of the answer, and a callback for each route asked."""

    @property
    def output_limit(self) -> int: ...

    def note_asked(self, route: Route | None, /) -> None: ...


async def compose(
    chat: ChatRequest,
    character: Character,
    prompt: PromptSize,
    credit: Paying,
    plan: Plan,
    grounding: Grounding = NO_GROUNDING,
) -> Ask:
    sent = await _with_material(chat.messages, grounding) if grounding.edits else chat.messages
    output_limit = credit.output_limit
    separate = [character.message, *sent]
    if leading := chat.leading_system:
        gap = b"\\n\\n" if chat.system else b""
        joined = await _join([b'{"role":"system","content":"', character.json, gap, chat.system, b'"}'])
        messages = [msgspec.Raw(joined), *sent[leading:]]
    fields, own_bytes = chat.fields, 0
    if chat.extra and (passed := passed_fields(chat.extra, plan)):
        fields, own_bytes = {**fields, **passed}, sum(map(len, passed)) + NAME_OWN_BYTES * len(passed)
    own_bytes += OWN_BYTES + MESSAGE_OWN_BYTES * len(chat.messages) + character.size_bytes + plan.fields_bytes
    return Ask(
        messages=messages if leading else separate,
        sampling=chat.sampling,
        max_tokens=output_limit if is_shortened(chat, output_limit, plan) else chat.max_tokens,
        stream=chat.stream,
        tools=chat.tools,
        extra=chat.extra,
        prompt_tokens=prompt.at_most,
        separate=separate if leading else (),
        is_large=isinstance(chat.texts, LargeTexts) or grounding.texts_bytes > SLICE_BYTES,
        counted_bytes=sent_bytes(chat.messages, fields) + grounding.texts_bytes + own_bytes,
        on_asked=credit.note_asked,
    )


async def _with_material(messages: list[msgspec.Raw], grounding: Grounding) -> list[msgspec.Raw]:
    edited = list(messages)
    for index in grounding.edits:
        edited[index] = msgspec.Raw(await _join(grounding.edited(index, messages[index])))
    return edited


async def _join(parts: list[bytes | memoryview]) -> bytes | bytearray:
    """The parts as one. A long part is copied in slices, so that other requests can run in between."""
    if all(len(part) <= SLICE_BYTES for part in parts):
        return b"".join(parts)
    joined = bytearray()
    for part in parts:
        for start in range(0, len(part), SLICE_BYTES):
            joined += memoryview(part)[start : start + SLICE_BYTES]
            await asyncio.sleep(0)
    return joined


def is_shortened(chat: ChatRequest, output_limit: int, plan: Plan) -> bool:
    """Whether the answer is limited to less than was asked for, because the account cannot pay for more."""
    return output_limit < (chat.max_tokens or plan.max_output_tokens)
