"""Replies of the loopback upstream, chosen by the number in a request's message, so that requests may come at once."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from tests.loopback import Event, Json, Pause, Reply, Request, Sse, Step, chunk, completion, said

ROLE = chunk({"role": "assistant", "content": ""})
STOP = chunk(finish="stop")


class Numbered(msgspec.Struct, frozen=True):
    """To each number its own reply."""

    replies: Mapping[int, Reply]

    def steps(self, request: Request) -> Iterable[Step]:
        return self.replies[number_of(request)].steps(request)


class Whole(msgspec.Struct, frozen=True):
    """A sound reply of these words, streamed or not as it is asked, with a count or without one.

    `pause` comes before its last word, or before all of it where it is not streamed.
    """

    words: Sequence[str]
    usage: dict[str, Any] | None
    pause: Pause | None = None

    def steps(self, request: Request) -> Iterator[Step]:
        pauses: list[Event] = [self.pause] if self.pause else []
        if request.json.get("stream"):
            *first, last = map(said, self.words)
            counted = [chunk(choices=[], usage=self.usage)] if self.usage else []
            yield from Sse([ROLE, *first, *pauses, last, STOP, *counted]).steps(request)
        else:
            if self.pause:
                yield self.pause
            value = completion("".join(self.words))
            del value["usage"]
            yield from Json(value | ({"usage": self.usage} if self.usage else {})).steps(request)


def number_of(request: Request) -> int:
    return int(request.json["messages"][-1]["content"].split()[0])


def counts(prompt_tokens: int, completion_tokens: int, cached_tokens: int = 0) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
    }
