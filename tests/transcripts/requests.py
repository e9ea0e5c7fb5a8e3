"""What a client sends, as the words of a transcript say."""

import json
from collections.abc import Callable
from typing import Any

import msgspec

from tests.contract.agent import TOOLS
from tests.ledger_reader import cost_nano
from tests.raw_client import MESSAGES, RawClient
from tests.transcripts.reading import NOTHING, Turn, Word

CHAT = "/v1/chat/completions"
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS")
BODILESS = ("GET", "HEAD", "OPTIONS")


class Sent(msgspec.Struct):
    """A request. Unless its words say otherwise, it is a chat of one message with the key of the stage."""

    stage_key: str
    key: str | None
    method: str = "POST"
    path: str = CHAT
    headers: list[str] = []
    fields: dict[str, Any] = {}
    messages: list[Any] = []
    left_out: list[str] = []
    raw: bytes | None = None
    credit_nano: int | None = None  # of a new account
    is_plain: bool = False
    has_same_account: bool = False  # as the request before
    is_fresh: bool = False  # the config is read again before it, which makes every route healthy
    times: int = 1

    @property
    def is_chat(self) -> bool:
        return self.method == "POST" and self.path == CHAT and self.raw is None

    @property
    def body(self) -> bytes | None:
        if self.raw is not None or self.method in BODILESS:
            return self.raw
        fields = {"messages": self.messages or MESSAGES, **self.fields}
        return json.dumps({name: value for name, value in fields.items() if name not in self.left_out}).encode()

    def bytes(self, *, stream: bool) -> bytes:
        if stream:
            self.fields.setdefault("stream", True)
        body = self.body
        length = [] if body is None else [f"content-length: {len(body)}"]
        return RawClient(0, self.key).head(self.method, self.path, *length, *self.headers) + (body or b"")


def read_request(turn: Turn, key: str) -> Sent:
    sent = Sent(key, key)
    for word in turn.words(">"):
        if word.name in METHODS:
            sent.method = word.name
        elif word.name == "" and word.argument:
            sent.path = word.argument
        elif word.name == "":
            sent.fields |= word.value
        elif word.name.startswith("-"):
            sent.left_out.append(word.name[1:])
        elif make := MESSAGE_WORDS.get(word.name):
            sent.messages.append(make(word))
        elif change := SENT_WORDS.get(word.name):
            change(sent, word)
        else:
            sent.fields[word.name] = True if word.value is NOTHING else word.value
    return sent


def _called(word: Word) -> dict[str, Any]:
    """`called:a,b`: an assistant's message with calls of these ids."""
    function = {"name": "look", "arguments": "{}"}
    calls = [{"id": id_, "type": "function", "function": function} for id_ in word.argument.split(",")]
    return {"role": "assistant", "tool_calls": calls}


def _said(word: Word) -> dict[str, Any]:
    return {"role": word.name, "content": word.value}


MESSAGE_WORDS: dict[str, Callable[[Word], Any]] = {
    **dict.fromkeys(("user", "system", "developer", "assistant"), _said),
    "message": lambda word: word.value,
    "called": _called,
    "calls": lambda word: {"role": "assistant", "content": None, "tool_calls": word.value},
    "result": lambda word: {"role": "tool", "tool_call_id": word.argument, "content": word.value},
}


def _set_key(sent: Sent, word: Word) -> None:
    sent.key = None if word.argument == "none" else str(word.value)


def _add_header(sent: Sent, word: Word) -> None:
    """In a value, KEY is the key of the stage."""
    value = str(word.value).replace("KEY", sent.stage_key)
    sent.headers.append(f"{word.argument}: {value.encode().decode('latin-1')}")


def _set_path(sent: Sent, word: Word) -> None:
    sent.path = word.value


def _set_raw(sent: Sent, word: Word) -> None:
    """A body as it is: text, or `raw:latin1"\\u00ff"` with a byte for each character."""
    sent.raw = word.value.encode(word.argument or "utf-8")


def _add_tool(sent: Sent, word: Word) -> None:
    sent.fields.setdefault("tools", []).append({"type": "function", "function": word.value})


def _set_tools(sent: Sent, word: Word) -> None:
    """Without JSON: two good ones."""
    sent.fields["tools"] = TOOLS if word.value is NOTHING else word.value


def _set_credit(sent: Sent, word: Word) -> None:
    """`credit:1000`, or `credit:forte,24,16,-1`: for so many tokens, and one nano-dollar less."""
    class_id, *numbers = word.argument.split(",")
    if not numbers:
        sent.credit_nano = int(class_id)
        return
    prompt, completion, *more = map(int, numbers)
    sent.credit_nano = cost_nano(class_id, prompt, completion) + sum(more)


def _set_plain(sent: Sent, _word: Word) -> None:
    sent.is_plain = True


def _set_fresh(sent: Sent, _word: Word) -> None:
    sent.is_fresh = True


def _set_same(sent: Sent, _word: Word) -> None:
    sent.has_same_account = True


def _set_times(sent: Sent, word: Word) -> None:
    sent.times = word.value


SENT_WORDS: dict[str, Callable[[Sent, Word], None]] = {
    "key": _set_key,
    "header": _add_header,
    "path": _set_path,
    "raw": _set_raw,
    "tool": _add_tool,
    "tools": _set_tools,
    "credit": _set_credit,
    "plain": _set_plain,
    "fresh": _set_fresh,
    "same": _set_same,
    "times": _set_times,
}
