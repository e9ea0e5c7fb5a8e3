"""What the clients of each protocol get of one upstream reply: the same in all of them, streamed or not.

Each event and each reply is read with the types of the official SDKs in strict mode, and the SDK itself puts a stream
together. A field that a type does not declare must be one that we document.
"""

import json
from collections.abc import Sequence
from functools import partial
from typing import Any, get_args

import msgspec
from anthropic.lib.streaming._messages import accumulate_event
from anthropic.types import Message, RawMessageStreamEvent
from openai import omit
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel

from cadenza.gateway.answers import Answers
from cadenza.gateway.relay import StreamRelay, WholeRelay, join_extras
from cadenza.http.events import EventReader
from cadenza.parts.protocols.anthropic import MESSAGE_ERRORS
from cadenza.parts.protocols.anthropic_reply import REASONS as STOP_REASONS
from cadenza.parts.protocols.anthropic_reply import MessageStream, WholeMessage
from cadenza.parts.protocols.responses_reply import StreamedResponse, WholeResponse
from cadenza.parts.protocols.responses_request import REASONING, unwrap_reasoning
from cadenza.parts.protocols.translation import Kept
from tests.parts.protocols.generated.replies import GeneratedReply, SteppedReply, make_reply
from tests.unit.gateway.client import Client
from tests.unit.gateway.test_relay import new_meter

ADDED = {"store", "cost", "extra_content", "namespace", "annotations", "error", *REASONING}  # to what the SDKs declare
NAMES = {"files__read": ("files", "read")}
CUT_BY = {"length": "max_output_tokens", "content_filter": "content_filter"}
NO_COUNTS = (0, 0, 0, None)
Events = list[tuple[str, bytes]]  # their names and data


class Said(msgspec.Struct, frozen=True):
    """What a model said. A call has its name, its arguments and the data that its upstream wants back."""

    thinking: str
    text: str
    refusal: str
    calls: list[Any]
    sources: list[tuple[str, str]]
    end: str
    counts: tuple[Any, ...] = NO_COUNTS  # prompt, cached, completion, cost


async def check_seed(seed: int) -> int:
    """Check the reply of this seed. Returns how many events were sent."""
    reply = make_reply(seed)
    clients = Clients(reply, seed)
    chunks = EventReader().feed(await clients.chat(stream=True))
    response_events = events_of(await clients.response(stream=True))
    message_events = events_of(await clients.message(stream=True))
    if reply.fault:
        said = said_in_chat(assemble_chat(chunks))
        assert "error" in json.loads(chunks[-1])
        assert said_in_response(assemble_response(response_events)) == msgspec.structs.replace(said, end="failed")
        check_broken_message(message_events, said, reply)
    else:
        chat = read(ChatCompletion, await clients.chat(stream=False))
        said = said_in_chat(chat)
        assert chunks[-1] == b"[DONE]"
        assert counted(said_in_chat(assemble_chat(chunks)), reply) == counted(said, reply)
        response = read(Response, await clients.response(stream=False))
        check_response(assemble_response(response_events), response, said, reply)
        check_secrets(response["output"], chat["choices"][0]["message"], reply)
        check_message(assemble_message(message_events), read(Message, await clients.message(stream=False)), said, reply)
    return len(chunks) + len(response_events) + len(message_events)


class Clients:
    """The clients of one reply. The seed decides what of it arrives together."""

    def __init__(self, reply: GeneratedReply, seed: int) -> None:
        self._reply, self._seed = reply, seed
        self._kept = Kept(names=NAMES, is_encrypted=reply.is_encrypted)

    async def chat(self, *, stream: bool) -> bytes:
        return await self._get(StreamRelay if stream else WholeRelay, stream=stream)

    async def response(self, *, stream: bool) -> bytes:
        whole = partial(WholeResponse.of, self._kept)
        return await self._get(partial(StreamedResponse, kept=self._kept) if stream else whole, stream=stream)

    async def message(self, *, stream: bool) -> bytes:
        make = partial(MessageStream if stream else WholeMessage, kept=Kept(shows_thinking=self._reply.shows_thinking))
        return await self._get(make, stream=stream)

    async def _get(self, make_relay: Any, *, stream: bool) -> bytes:
        """All that is sent."""
        client = Client()
        answers = Answers(client.open(), "req-1")
        if isinstance(make_relay, partial) and make_relay.func is MessageStream:
            answers.errors = MESSAGE_ERRORS
        relay = make_relay(*([client.exchange] if stream else []), answers, self._reply.head, new_meter())
        relay.finish(await relay.run(SteppedReply(self._reply, self._seed)))
        return b"".join(client.bodies)


def events_of(sent: bytes) -> Events:
    events = []
    for block in filter(None, sent.split(b"\n\n")):
        name, data = block.strip(b"\n").split(b"\n")
        assert (name[:7], data[:6]) == (b"event: ", b"data: ")
        events.append((name[7:].decode(), data[6:]))
        assert json.loads(data[6:])["type"] == events[-1][0]
    return events


def types_of(union: Any) -> dict[str, type[BaseModel]]:
    """The events of a protocol by their names."""
    members = get_args(get_args(union)[0])
    return {name: member for member in members for name in get_args(member.model_fields["type"].annotation)}


RESPONSE_EVENTS, MESSAGE_EVENTS = types_of(ResponseStreamEvent), types_of(RawMessageStreamEvent)


def parse(model: type[BaseModel], data: bytes) -> Any:
    """The record of the SDK, if the JSON has all that it requires and nothing that nobody declares."""
    found = model.model_validate_json(data, strict=True)
    check_declared(found, model.__name__)
    return found


def check_declared(value: Any, path: str) -> None:
    if isinstance(value, BaseModel):
        assert set(value.model_extra or ()) <= ADDED, f"{path}: {value.model_extra}"
        for name in value.model_fields_set:
            check_declared(getattr(value, name), f"{path}.{name}")
    elif isinstance(value, list):
        for one in value:
            check_declared(one, path)


def read(model: type[BaseModel], data: bytes) -> Any:
    parse(model, data)
    return json.loads(data)


def counted(said: Said, reply: GeneratedReply) -> Said:
    """Our own counts depend on the order of what is said, which differs."""
    return said if reply.is_counted else msgspec.structs.replace(said, counts=NO_COUNTS)


def join(blocks: Sequence[Any], type_: str, field: str) -> str:
    return "".join(block[field] for block in blocks if block["type"] == type_)


def made_call(name: str, arguments: str, call: Any) -> Any:
    return name, arguments, call.get("extra_content") or None


def counts_of(usage: Any, prompt: str, completion: str) -> tuple[Any, ...]:
    """The counts under the names that a protocol has for them."""
    if not usage:
        return NO_COUNTS
    return usage[prompt], usage[f"{prompt}_details"]["cached_tokens"], usage[completion], usage.get("cost")


# chat completions


def assemble_chat(chunks: list[bytes]) -> Any:
    """The completion as the SDK puts it together, until [DONE] or an error."""
    state = ChatCompletionStreamState()
    for chunk in chunks[:-1]:
        state.handle_chunk(parse(ChatCompletionChunk, chunk))
    return json.loads(state.current_completion_snapshot.model_dump_json())


def said_in_chat(completion: Any) -> Said:
    [choice] = completion["choices"]
    message, usage = choice["message"], completion["usage"]
    calls = [(call["function"], call) for call in message.get("tool_calls") or ()]
    cited = [one["url_citation"] for one in message.get("annotations") or ()]
    return Said(
        thinking=message.get("reasoning_content") or message.get("reasoning") or "",
        text=message["content"] or "",
        refusal=message["refusal"] or "",
        calls=[made_call(function["name"], function["arguments"], call) for function, call in calls],
        sources=[(one["url"], one["title"]) for one in cited],
        end=choice["finish_reason"],
        counts=counts_of(usage, "prompt_tokens", "completion_tokens"),
    )


# responses


def assemble_response(events: Events) -> Any:
    """The last event has the whole response, with what the SDK puts together, and what any client may of the deltas."""
    state = ResponseStreamState[Any](input_tools=omit, text_format=omit)
    growing, sent = dict[tuple[int, int | None], str](), [json.loads(data) for _, data in events]
    for number, (name, data) in enumerate(events):
        event = parse(RESPONSE_EVENTS[name], data)
        assert event.sequence_number == number
        for fired in state.handle_event(event):
            if "snapshot" in fired.model_fields_set:
                place: Any = fired
                growing[place.output_index, getattr(place, "content_index", None)] = place.snapshot
    ended = sent[-1]["response"]
    assert events[-1][0] == f"response.{ended['status']}"
    for (index, part), text in growing.items():
        item = ended["output"][index]
        assert text == (item["arguments"] if part is None else item["content"][part]["text"])
    done = {event["output_index"] for event in sent if event["type"] == "response.output_item.done"}
    check_items(assemble_items(sent[:-1]), done, ended)
    return ended


def check_items(items: list[Any], done: set[int], ended: Any) -> None:
    """All items are done in a response that is complete, and no call in one that is not: it may be cut."""
    is_complete = ended["status"] == "completed"
    for index, (item, shown) in enumerate(zip(items, ended["output"], strict=True)):
        known = item if index in done else {**item, "status": "incomplete"}
        assert known == {name: shown[name] for name in known}
        assert not is_complete or (index in done and shown["status"] == "completed")
        assert is_complete or index not in done or "call" not in shown["type"]


def assemble_items(events: list[Any]) -> list[Any]:
    """The items as a client puts them together from the deltas."""
    items: list[Any] = []
    for event in events:
        kind, index = event["type"].removeprefix("response."), event.get("output_index")
        if kind == "output_item.added":
            assert index == len(items)
            items.append(event["item"])
        elif kind == "content_part.added":
            assert event["content_index"] == len(items[index]["content"])
            items[index]["content"].append(event["part"])
        elif kind == "output_text.annotation.added":
            items[index]["content"][event["content_index"]]["annotations"].append(event["annotation"])
        elif kind.endswith((".delta", ".done")) and "item_id" in event and kind != "content_part.done":
            assert items[index]["id"] == event["item_id"]
            place = items[index]["content"][event["content_index"]] if "content_index" in event else items[index]
            field = next(name for name in ("text", "refusal", "arguments", "input") if name in place)
            if "delta" in event:
                place[field] += event["delta"]
            assert place[field] == event.get(field, place[field]), "the end repeats what the deltas said"
        elif kind == "output_item.done":
            known = {**items[index], "status": event["item"]["status"]}
            assert known == {name: event["item"][name] for name in known}
            items[index] = event["item"]
    return items


def said_in_response(response: Any) -> Said:
    items, usage = response["output"], response["usage"]
    parts = [part for item in items for part in item.get("content", ())]
    calls = [(call.get("namespace"), call) for call in items if call["type"] == "function_call"]
    cited = [one for part in parts for one in part.get("annotations", ())]
    return Said(
        thinking=join(parts, "reasoning_text", "text"),
        text=join(parts, "output_text", "text"),
        refusal=join(parts, "refusal", "refusal"),
        calls=[
            made_call(f"{space}__{call['name']}" if space else call["name"], call["arguments"], call)
            for space, call in calls
        ],
        sources=[(one["url"], one["title"]) for one in cited],
        end=response["incomplete_details"]["reason"] if response["incomplete_details"] else response["status"],
        counts=counts_of(usage, "input_tokens", "output_tokens"),
    )


def check_response(streamed: Any, whole: Any, said: Said, reply: GeneratedReply) -> None:
    expected = msgspec.structs.replace(
        said, end=CUT_BY.get(said.end, "completed"), sources=said.sources if said.text else []
    )
    assert counted(said_in_response(whole), reply) == counted(expected, reply)
    for response in (streamed, whole):
        for item in response["output"]:
            item["call_id"] = bool(item.get("call_id"))  # each reply has ids of its own
        response["usage"] = reply.is_counted and response["usage"]
    assert streamed == whole


def check_secrets(items: list[Any], message: Any, reply: GeneratedReply) -> None:
    """The reasoning that a client sends back is what the upstream gave."""
    wrapped = [item["encrypted_content"] for item in items if "encrypted_content" in item]
    parts: dict[str, list[Any]] = {}
    for name, value in [pair for one in wrapped for pair in (unwrap_reasoning(one) or {}).items()]:
        parts.setdefault(name, []).append(value if isinstance(value, str) else json.loads(bytes(value)))
    given = {name: value for name, value in message.items() if name in REASONING}
    assert join_extras(parts) == (given if reply.is_encrypted else {})


# messages


def assemble_message(events: Events) -> Any:
    """The message as the SDK puts it together, with the arguments of calls as they came."""
    snapshot, buffers, opened, index = None, dict[int, bytes](), False, -1
    for name, data in events:
        event = parse(MESSAGE_EVENTS[name], data)
        if name.startswith("content_block"):
            assert opened == (name != "content_block_start"), "one block is open at a time"
            opened, index = name != "content_block_stop", index + (name == "content_block_start")
            assert event.index == index
        if name != "message_stop":
            snapshot = accumulate_event(event=event, current_snapshot=snapshot, json_bufs=buffers)
    assert snapshot
    message: Any = snapshot.to_dict()
    for place, arguments in buffers.items():
        message["content"][place]["arguments"] = arguments.decode()
    return message


def said_in_message(message: Any) -> Said:
    blocks, usage = message["content"], message["usage"]
    cited = [one for block in blocks for one in block.get("citations") or ()]
    return Said(
        thinking=join(blocks, "thinking", "thinking"),
        text=join(blocks, "text", "text"),
        refusal="",
        calls=[made_call(block["name"], block["input"], block) for block in blocks if block["type"] == "tool_use"],
        sources=[(one["url"], one["title"]) for one in cited],
        end=message["stop_reason"],
        counts=(
            usage["input_tokens"] + usage["cache_read_input_tokens"],
            usage["cache_read_input_tokens"],
            usage["output_tokens"],
        ),
    )


def check_message(streamed: Any, whole: Any, said: Said, reply: GeneratedReply) -> None:
    """The SDK parses the arguments of a call. Those of one that was cut are left out of a whole reply."""
    expected = msgspec.structs.replace(
        said,
        thinking=said.thinking if reply.shows_thinking else "",
        text=said.text + said.refusal,
        refusal="",
        sources=said.sources if said.text + said.refusal else [],
        calls=[(name, decoded(arguments), extra) for name, arguments, extra in said.calls],
        end="refusal" if said.refusal else STOP_REASONS[said.end],
        counts=said.counts[:3],
    )
    assert counted(said_in_message(whole), reply) == counted(expected, reply)
    calls = [block for block in streamed["content"] if block["type"] == "tool_use"]
    for (_, arguments, _), call in zip(said.calls, calls, strict=True):
        assert call.pop("arguments", "").strip() == arguments.strip(), "all of them arrive"
        call["input"] = decoded(arguments) and call["input"]
    assert counted(said_in_message(streamed), reply) == counted(expected, reply)
    assert streamed["content"], "Claude Code asks again after a stream without any block"
    assert whole["content"]
    assert whole["usage"].get("cost") == said.counts[3] or not reply.is_counted


def decoded(arguments: str) -> Any:
    try:
        found = json.loads(arguments)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def check_broken_message(events: Events, said: Said, reply: GeneratedReply) -> None:
    """It is the beginning of what was said: a text beside calls waits for their end, and one call for another."""
    name, data = events.pop()
    told = json.loads(data)
    assert (name, set(told), told["request_id"]) == ("error", {"type", "error", "request_id"}, "req-1")
    blocks = assemble_message(events)["content"]
    assert (said.text + said.refusal).startswith(join(blocks, "text", "text"))
    assert (said.thinking if reply.shows_thinking else "").startswith(join(blocks, "thinking", "thinking"))
    calls = [(block["name"], block.get("arguments", "")) for block in blocks if block["type"] == "tool_use"]
    for (shown, arguments), (name, all_arguments, _) in zip(calls, said.calls, strict=False):
        assert shown == name
        assert all_arguments.lstrip().startswith(arguments)
