"""Builds the ask that goes upstream: the character layer first, then the client's messages in their order.

The character layer comes first in the one leading system message, so a client's `system` or `developer` message adds to
it and never replaces it. One message, because many chat templates refuse or silently drop a second one.
"""

import msgspec

from cadenza.core.records import Plan
from cadenza.gateway.validate import ChatRequest
from cadenza.routing.prompt import Character, PromptSize
from cadenza.upstreams.base import Ask


def compose(chat: ChatRequest, character: Character, prompt: PromptSize, output_limit: int, plan: Plan) -> Ask:
    separate = [character.message, *chat.messages]
    if leading := chat.leading_system:
        text = "\n\n".join([character.text, *filter(None, chat.texts[:leading])])
        joined = msgspec.Raw(msgspec.json.encode({"role": "system", "content": text}))
        messages = [joined, *chat.messages[leading:]]
    return Ask(
        messages=messages if leading else separate,
        sampling=chat.sampling,
        max_tokens=output_limit if is_shortened(chat, output_limit, plan) else chat.max_tokens,
        stream=chat.stream,
        tools=chat.tools,
        prompt_tokens=prompt.at_most,
        separate=separate if leading else (),
    )


def is_shortened(chat: ChatRequest, output_limit: int, plan: Plan) -> bool:
    """Whether the answer is limited to less than was asked for, because the account cannot pay for more."""
    return output_limit < (chat.max_tokens or plan.max_output_tokens)
