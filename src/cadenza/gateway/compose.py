"""The prompt that goes upstream: the character layer first, then the client's messages in their order.

The layer is always the first message and a message of its own, so that a client's `system` or `developer` message
adds to it and never takes its place. Grounding joins here, on the plain path only.
"""

import msgspec

from cadenza.core.tokens import count_prompt
from cadenza.gateway.validate import ChatRequest
from cadenza.upstreams.base import Ask


class Character:
    """The character text of one class, ready to be sent and counted."""

    def __init__(self, text: str) -> None:
        self.tokens = count_prompt([text])
        self.message = msgspec.Raw(msgspec.json.encode({"role": "system", "content": text}))


def compose(request: ChatRequest, character: Character, prompt_tokens: int) -> Ask:
    return Ask(
        messages=[character.message, *request.messages],
        sampling=request.sampling,
        max_tokens=request.max_tokens,
        stream=request.stream,
        tools=request.tools,
        prompt_tokens=prompt_tokens,
    )
