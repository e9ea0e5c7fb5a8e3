"""How upstreams reply: what is odd about the streams and bodies of each, as a table of small choices."""

import json
from collections.abc import Callable, Sequence
from typing import Any, Literal

import msgspec

from tests.contract.agent import Made
from tests.loopback import Event, Sse, Status, chunk, completion

Fields = dict[str, Any]
PROMPT_TOKENS = 23
COMPLETION_TOKENS = 9
CACHED_TOKENS = 5
SIGNATURE = "c2lnbmF0dXJl"


class Said(msgspec.Struct, frozen=True):
    """What the model says: a text, its reasoning, and calls."""

    text: str = ""
    reasoning: str = ""
    calls: Sequence[Made] = ()


def counted(**more: Any) -> Fields:
    counts = {"prompt_tokens": PROMPT_TOKENS, "completion_tokens": COMPLETION_TOKENS}
    return {**counts, "total_tokens": PROMPT_TOKENS + COMPLETION_TOKENS, **more}


def cached_in_details(**more: Any) -> Fields:
    return counted(prompt_tokens_details={"cached_tokens": CACHED_TOKENS}, **more)


def whole_call(call: Made) -> Fields:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.text}}


def in_fragments(made: Sequence[Made]) -> list[Fields]:
    """Id and name, then arguments a few characters at a time, call after call."""
    deltas = []
    for index, call in enumerate(made):
        first = {"index": index, "id": call.id, "type": "function", "function": {"name": call.name, "arguments": ""}}
        pieces = [call.text[start : start + 7] for start in range(0, len(call.text), 7)]
        deltas += [first, *({"index": index, "function": {"arguments": piece}} for piece in pieces)]
    return [{"tool_calls": [delta]} for delta in deltas]


def named_in_fragments(made: Sequence[Made]) -> list[Fields]:
    """Id, type and name on every delta of a call."""
    deltas = []
    for index, call in enumerate(made):
        for start in range(0, len(call.text), 9):
            function = {"name": call.name, "arguments": call.text[start : start + 9]}
            deltas.append({"index": index, "id": call.id, "type": "function", "function": function})
    return [{"tool_calls": [delta]} for delta in deltas]


def each_whole(made: Sequence[Made]) -> list[Fields]:
    """A delta for each call."""
    return [{"tool_calls": [{"index": index, **whole_call(call)}]} for index, call in enumerate(made)]


def each_whole_at_0(made: Sequence[Made]) -> list[Fields]:
    """A delta for each call, and all of them have index 0."""
    return [{"tool_calls": [{"index": 0, **whole_call(call)}]} for call in made]


def all_without_index(made: Sequence[Made]) -> list[Fields]:
    """One delta with all calls, which have neither index nor type."""
    return [{"tool_calls": [{"id": call.id, "function": whole_call(call)["function"]} for call in made]}]


def at_content_blocks(made: Sequence[Made]) -> list[Fields]:
    """The index of a call counts the text before it, and there are empty fragments."""
    deltas = []
    for index, call in enumerate(made, 1):
        first = {"index": index, "id": call.id, "type": "function", "function": {"name": call.name, "arguments": ""}}
        rest = [{"index": index, "function": {"arguments": piece}} for piece in ("", "", call.text)]
        deltas += [{"tool_calls": [delta]} for delta in (first, *rest)]
    return deltas


def signed_without_index(made: Sequence[Made]) -> list[Fields]:
    """A delta for each call, without index. The first call of a turn has a signature."""
    return [{"tool_calls": [call]} for call in signed(made)]


def signed(made: Sequence[Made]) -> list[Fields]:
    extra = {"extra_content": {"google": {"thought_signature": SIGNATURE}}}
    return [whole_call(call) | (extra if place == 0 else {}) for place, call in enumerate(made)]


def one_object(made: Sequence[Made]) -> list[Fields]:
    """One call, as an object instead of a list, in fragments that repeat its id."""
    (call,) = made
    name = {"index": 0, "id": call.id, "type": "function", "function": {"name": call.name, "arguments": ""}}
    parts = [name | {"function": {"name": "", "arguments": piece}} for piece in (call.text[:6], call.text[6:])]
    return [{"tool_calls": name}, *({"tool_calls": part} for part in parts)]


def whole_calls(made: Sequence[Made]) -> list[Fields]:
    return list(map(whole_call, made))


def with_objects(made: Sequence[Made]) -> list[Fields]:
    """The arguments are objects instead of text."""
    return [whole_call(call) | {"function": {"name": call.name, "arguments": call.arguments}} for call in made]


class Manner(msgspec.Struct, frozen=True, kw_only=True):
    """The choices of one upstream. The defaults are those of OpenAI."""

    new_id: Callable[[int], str] = lambda n: f"call_Up{n:022d}"
    reasoning: str | None = None  # the field of its reasoning; "parts" of the content
    has_details: bool = False  # its reasoning also comes as `reasoning_details`
    deltas: Callable[[Sequence[Made]], list[Fields]] = in_fragments
    calls: Callable[[Sequence[Made]], list[Fields]] = whole_calls
    streamed_reason: str = "tool_calls"  # the finish reason of a stream with calls
    reason: str = "stop"  # the finish reason of a text
    usage: Callable[[], Fields] = cached_in_details
    usage_at: Literal["own_chunk", "finish", "each_chunk", "choice", "x_groq"] = "own_chunk"
    finishes_with_delta: bool = False  # the last delta and the finish reason come in one chunk
    in_each_delta: Fields = {}
    first: Sequence[Event] = ()  # before the answer
    last: Sequence[Event] = ()  # after the finish reason
    blank_lines: int = 0  # before the JSON of a body
    is_terminated: bool = True

    def stream(self, said: Said, asked: Fields) -> Sse:
        deltas = [{"role": "assistant", "content": ""}, *self._deltas(said)]
        chunks = [chunk({**self.in_each_delta, **delta}) for delta in deltas]
        finish = self.streamed_reason if said.calls else self.reason
        if self.finishes_with_delta:
            chunks[-1]["choices"][0]["finish_reason"] = finish
        else:
            chunks.append(chunk(finish=finish))
        wants_usage = bool((asked.get("stream_options") or {}).get("include_usage"))
        events = [*self.first, *self._with_usage(chunks, wants_usage=wants_usage), *self.last]
        return Sse(events, done=self.is_terminated)

    def body(self, said: Said) -> Status:
        value = completion(said.text or None, "tool_calls" if said.calls else self.reason, usage=self.usage())
        message = value["choices"][0]["message"]
        message |= self._reasoning(said.reasoning) if said.reasoning else {}
        if self.reasoning == "parts" and said.reasoning:
            message["content"] += [{"type": "text", "text": said.text}]
        if said.calls:
            message["tool_calls"] = self.calls(said.calls)
        return Status(200, b"\n" * self.blank_lines + json.dumps(value).encode())

    def _deltas(self, said: Said) -> list[Fields]:
        thoughts = [self._reasoning(part) for part in _halves(said.reasoning)]
        texts: list[Fields] = [{"content": part} for part in _halves(said.text)]
        if self.reasoning == "parts":
            texts = [{"content": [{"type": "text", "text": text["content"]}]} for text in texts]
        return [*thoughts, *texts, *(self.deltas(said.calls) if said.calls else ())]

    def _reasoning(self, text: str) -> Fields:
        if self.reasoning is None:
            return {}
        if self.reasoning == "parts":
            return {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": text}]}]}
        details = [{"type": "reasoning.text", "text": text, "signature": SIGNATURE, "index": 0}]
        return {self.reasoning: text, **({"reasoning_details": details} if self.has_details else {})}

    def _with_usage(self, chunks: list[Fields], *, wants_usage: bool) -> list[Fields]:
        usage = self.usage()
        if self.usage_at == "own_chunk":
            return [*chunks, chunk(choices=[], usage=usage)] if wants_usage else chunks
        if self.usage_at == "choice":
            chunks[-1]["choices"][0]["usage"] = usage
        elif self.usage_at == "x_groq":
            chunks[-1]["x_groq"] = {"id": "req_1", "usage": usage}
        elif self.usage_at == "finish":
            chunks[-1]["usage"] = usage
        else:
            for number, one in enumerate(chunks, 1):
                sofar = number * COMPLETION_TOKENS // len(chunks)
                one["usage"] = usage | {"completion_tokens": sofar, "total_tokens": PROMPT_TOKENS + sofar}
        return chunks


def _halves(text: str) -> list[str]:
    middle = len(text) // 2
    return [half for half in (text[:middle], text[middle:]) if half]
