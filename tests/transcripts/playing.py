"""Plays a transcript on a stage, and compares. A chat is played plain and as a stream, if both can be.

Whatever a case says, every reply keeps the rules of the interface: its schema, the order of a stream, the shape of an
error and its retry headers; and nothing of the upstream's own is in it.
"""

import json
import re
from collections.abc import Callable
from typing import Any

import msgspec

from tests.ledger_reader import cost_nano
from tests.loopback import UPSTREAM_MARKS, LoopbackUpstream, Request
from tests.raw_client import Reply
from tests.schemas import (
    Called,
    Stream,
    check_broken_stream,
    check_completion,
    check_error,
    check_stream,
    completed_calls,
)
from tests.transcripts.reading import NOTHING, Case, Turn, Word, read_words
from tests.transcripts.requests import read_request
from tests.transcripts.stages import StoreStage
from tests.transcripts.upstreams import scripted

SECRET = "upstream-secret"
TYPES = {401: "authentication_error", 402: "insufficient_quota", 403: "permission_error", 429: "rate_limit_error"}
TYPES |= {500: "api_error", 502: "api_error", 503: "api_error"}
NOT_RETRIED = {400, 401, 402, 403, 404, 405, 409}
DOUBT = "an upstream's counts cannot be true"
SEEN = re.compile(r"\{\{(\w+)\}\}")


class Got(msgspec.Struct):
    """A complete reply to a chat, plain or streamed."""

    text: str
    finish: str
    usage: dict[str, Any]
    calls: tuple[Called, ...]
    extras: dict[str, Any]
    id: str
    model: str


def modes(case: Case) -> list[bool]:
    """Whether to play it as a stream: once each, unless the case decides."""
    turn = case.turns[0]
    sent = read_request(turn, "")
    if sent.is_plain or not sent.is_chat or "stream" in sent.fields:
        return [False]
    if any(scripted(line).is_for_streams for line in turn.lines.get("<", ())):
        return [True]
    return [False, True]


def play(stage: StoreStage, upstream: LoopbackUpstream, case: Case, *, stream: bool) -> None:
    seen, key = dict[str, str](), stage.key
    for written in case.turns:
        turn = Turn({mark: [_filled(line, seen) for line in lines] for mark, lines in written.lines.items()})
        sent = read_request(turn, stage.key)
        if sent.credit_nano is not None:
            key = stage.account_key(sent.credit_nano)
        if sent.has_same_account or sent.credit_nano is not None:
            sent.key = key
        if sent.is_fresh:
            stage.reload()
        is_stream = sent.is_chat and (stream or sent.fields.get("stream") is True)
        for _ in range(sent.times):
            upstream.reset()
            upstream.script(*map(scripted, turn.lines.get("<", ())))
            reply = Reply(stage.send(sent.bytes(stream=is_stream)))
            got = check_reply(reply, turn.words("="), is_stream=is_stream, is_chat=sent.path.endswith("completions"))
            check_effects(stage, upstream, turn, reply.headers.get("x-request-id", ""), got)
        seen["request_id"] = reply.headers.get("x-request-id", "")
        if got:
            seen |= {"id": got.id} | {f"call{number}": call.id for number, call in enumerate(got.calls)}


def check_effects(stage: StoreStage, upstream: LoopbackUpstream, turn: Turn, request_id: str, got: Got | None) -> None:
    """What the upstream got, what was charged, and what the log says."""
    if "^" in turn.lines:
        check_sent(upstream.requests, turn.lines["^"])
    if charge := turn.words("$"):
        check_charge(stage.charge(request_id), charge, got.id if got else "")
    if "!" in turn.lines:
        check_log(stage.log_lines(request_id), turn.words("!"))


def check_reply(reply: Reply, wanted: list[Word], *, is_stream: bool, is_chat: bool) -> Got | None:
    """Check the rules that every reply keeps, and what this one should have."""
    status = next((int(word.name) for word in wanted if word.name.isdigit()), 200)
    assert reply.status == status, f"{reply.status} {reply.body[:300]!r}"
    assert not [mark for mark in (*UPSTREAM_MARKS, SECRET) if mark.encode() in reply.body], reply.body
    got = None
    if status >= 400:
        _check_error(reply, status, wanted)
    elif broken := [word for word in wanted if word.name == "broken"]:
        found = check_broken_stream(reply.body)
        assert found.text == broken[0].value, found.text
        assert b'\n\n\ndata: {"error":' in reply.body, "no blank line before the error event"
    elif is_chat and status == 200:
        got = _streamed(check_stream(reply.body)) if is_stream else _completed(reply.json)
    for word in wanted:
        _check_word(reply, got, word)
    return got


def _check_error(reply: Reply, status: int, wanted: list[Word]) -> None:
    """Its object, the texts in its message, and whether it says that a retry can help."""
    type_ = next((word.argument for word in wanted if word.name == "error"), TYPES.get(status))
    message = check_error(reply.json, type_ or "invalid_request_error")
    for word in wanted:
        assert word.name or str(word.value) in message, message
    is_final = reply.headers.get("x-should-retry") == "false"
    if "x-request-id" in reply.headers:  # not on pages
        assert is_final if status in NOT_RETRIED else status < 429 or not is_final, reply.headers
    if status == 429:
        assert 1 <= int(reply.headers["retry-after"]) <= 3600, reply.headers
        assert int(reply.headers["retry-after-ms"]) > 0, reply.headers


def _streamed(stream: Stream) -> Got:
    calls, extras = stream.calls, stream.extras
    return Got(stream.text, stream.finish_reason, stream.usage, calls, extras, stream.id, stream.model)


def _completed(value: Any) -> Got:
    check_completion(value)
    choice, usual = value["choices"][0], {"role", "content", "tool_calls", "annotations"}
    extras = {name: one for name, one in choice["message"].items() if name not in usual and one is not None}
    text = choice["message"]["content"] or ""
    return Got(
        text, choice["finish_reason"], value["usage"], completed_calls(value), extras, value["id"], value["model"]
    )


def _check_word(reply: Reply, got: Got | None, word: Word) -> None:
    name, argument, value = word.name, word.argument, word.value
    header = reply.headers.get(argument)
    checks: dict[str, Callable[[], tuple[Any, Any]]] = {
        "has": lambda: (value.encode() in reply.body, True),
        "no": lambda: (value.encode() in reply.raw, False),
        "header": lambda: (header, header or "any" if value == argument else value),
        "body": lambda: (len(reply.body), value),
        "-header": lambda: (header, None),
        "at": lambda: _at(reply.json, word),
    }
    if got:
        checks |= {
            "": lambda: (got.text, value),
            "finish": lambda: (got.finish, argument),
            "model": lambda: (got.model, argument),
            "usage": lambda: (_counts(got.usage, argument), argument),
            "extras": lambda: (
                got.extras,
                value if _begins_with(reply.body, value, got.text) else "them before the text",
            ),
            "calls": lambda: ([[call.type, call.name, call.arguments] for call in got.calls], value),
        }
    if name in checks:
        found, expected = checks[name]()
        assert found == expected, f"{name}:{argument} is {found!r}, not {expected!r}"
    else:
        assert name.isdigit() or name in ("broken", "error", ""), f"not a word of a result: {name}"


def _begins_with(body: bytes, extras: dict[str, Any], text: str) -> bool:
    """In a stream, each extra field comes before the text."""
    if not body.startswith(b"data:"):
        return True
    place = body.find(json.dumps(text, ensure_ascii=False).encode()) if text else -1
    return place < 0 or all(body.index(f'"{name}":'.encode()) < place for name in extras if name != "refusal")


def _at(document: Any, word: Word) -> tuple[Any, Any]:
    """`at:data.0.id"auto"`, or `at:balance=null`."""
    path, _, scalar = word.argument.partition("=")
    for step in path.split("."):
        document = document[int(step)] if isinstance(document, list) else document.get(step)
    return document, json.loads(scalar) if scalar else word.value


def _counts(usage: dict[str, Any], like: str) -> str:
    counts = usage["prompt_tokens"], usage["completion_tokens"], usage["prompt_tokens_details"]["cached_tokens"]
    return "/".join(map(str, counts[: like.count("/") + 1]))


def check_sent(requests: list[Request], lines: list[str]) -> None:
    wanted = [] if lines == ["none"] else lines
    assert len(requests) == len(wanted), f"the upstream got {len(requests)} requests"
    for request, line in zip(requests, wanted, strict=True):
        for word in read_words(line):
            _check_sent_word(request, word)


def _check_sent_word(request: Request, word: Word) -> None:
    body = request.json
    if word.name == "has":
        assert word.value.encode() in request.body, request.body
    elif word.name == "noheader":
        assert word.value not in str(request.headers), request.headers
    elif word.name == "only":
        assert ",".join(sorted(body)) == word.argument, sorted(body)
    elif word.name.startswith("-"):
        assert word.name[1:] not in body, body
    else:
        for name, value in ({word.name: word.value} if word.name else word.value).items():
            assert body.get(name, NOTHING) == value, f"the upstream got {name}={body.get(name)!r}"


def check_log(lines: list[dict[str, Any]], words: list[Word]) -> None:
    """The line of the request has these fields. Text is the event of another line."""
    [request] = [line for line in lines if line["event"] == "request"]
    events, wanted = [line["event"] for line in lines], [word.value for word in words if not word.name]
    assert (DOUBT in events) == (DOUBT in wanted), lines
    assert set(wanted) <= set(events), lines
    for word in words:
        if word.name:
            assert request.get(word.name) == word.value, f"the log line has {word.name}={request.get(word.name)!r}"


def check_charge(charge: dict[str, Any] | None, words: list[Word], completion_id: str) -> None:
    """The counts that are charged, at the price of the class, under the id of the reply."""
    if words[0].name == "none":
        assert charge is None, charge
        return
    assert charge, "nothing was charged"
    assert charge["completion_id"] == completion_id or not completion_id, charge
    counts = [int(count) for count in words[1].name.split("/")]
    counts += [0] * (3 - len(counts))
    found = [charge["prompt_tokens"], charge["completion_tokens"], charge["cached_tokens"]]
    assert (charge["class_id"], found) == (words[0].name, counts), charge
    assert charge["amount_nano"] == -cost_nano(words[0].name, *counts), charge
    assert charge["estimated"] == any(word.name == "estimated" for word in words), charge


def _filled(line: str, seen: dict[str, str]) -> str:
    return SEEN.sub(lambda found: seen[found[1]], line)
