"""Random bodies of chat requests in every shape that is forwarded, and the count of an upstream that reads all of it.

The count shares no code with the service but the tokenizer: it walks the JSON that arrived, every value of a field that
is there twice included.
"""

import base64
import json
import math
import random
import struct
from collections.abc import Callable, Iterator
from typing import Any

from tests.tokens import count_tokens

WORDS = ["the", "ship", "harbour", "Grüße", "船在上午", "🙂🙂", "0x7f", "12345"]
WORDS += ["\n\n", "\t", '"', "\\", "a" * 9, "{}", "/"]
EXTRA_NAMES = ["reasoning_content", "name", "reasoning", "x", "cache_control", "vendor", "refusal", "\u00e9"]
# What a chat template knows by itself, or what the gateway writes.
KNOWN_NAMES = {"role", "content", "type", "text", "reasoning_content", "reasoning", "url", "detail", "data", "format"}
KNOWN_NAMES |= {"image_url", "input_audio"}
ENVELOPE = {"model", "stream", "stream_options", "store", "provider", "continue_final_message", "add_generation_prompt"}
BASE_TOKENS, TILE_TOKENS = 2_833, 5_667
AUDIO_BYTES_PER_TOKEN = 24
Pairs = list[tuple[str, Any]]


class BodyMaker:
    """Makes bodies from one seed. JSON is written by hand, because a field may be there twice."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def body(self, *first: tuple[str, Any]) -> bytes:
        """A body that begins with these fields."""
        chance, fields = self._random.random, list(first)
        is_tool_path = chance() < 0.25
        messages = [self._message(has_media=not is_tool_path and chance() < 0.2) for _ in range(self._number(1, 5))]
        if is_tool_path:
            messages += self._calls()
            fields.append(("tools", [self._tool(number) for number in range(self._number(1, 3))]))
            if chance() < 0.3:
                fields.append(("tool_choice", self._random.choice(["auto", "none", "required"])))
        fields.append(("messages", messages))
        fields.append(("max_tokens", self._number(16, 64)))
        for name, make in self._sampling().items():
            if chance() < 0.15:
                fields.append((name, make()))
        if chance() < 0.1:
            fields.append(("unknown", self.text()))
        is_ascii, blank = chance() < 0.5, self._random.choice(["", "", " ", "\n  "])
        return write_json(fields, is_ascii=is_ascii, blank=blank).encode()

    def text(self) -> str:
        """Mostly short; one of fifty is longer than what the service parses itself."""
        words = self._number(0, 30) if self._random.random() < 0.9 else self._number(100, 600)
        if self._random.random() < 0.01:
            words = 20_000
        return " ".join(self._random.choices(WORDS, k=words))

    def _number(self, least: int, most: int) -> int:
        return self._random.randint(least, most)

    def _sampling(self) -> dict[str, Callable[[], Any]]:
        return {
            "response_format": lambda: {"type": "json_schema", "json_schema": {"name": "n", "schema": self._value(3)}},
            "stop": lambda: self._random.choice([self.text()[:2000], [self.text()[:500] for _ in range(3)]]),
            "logit_bias": lambda: {str(number): self._number(-100, 100) for number in range(self._number(0, 200))},
            "temperature": lambda: 0.5,
            "top_p": lambda: 1,
            "reasoning_effort": lambda: "high",
            "presence_penalty": lambda: 0.1,
        }

    def _message(self, *, has_media: bool) -> Pairs:
        role = self._random.choice(["system", "developer", "user", "user", "assistant"])
        content: Any = self.text()
        if has_media:
            role, content = "user", [self._media(), *self._parts()]
        elif self._random.random() < 0.3:
            content = self._parts()
        fields: Pairs = [("role", role), ("content", content)]
        if self._random.random() < 0.1:
            fields.insert(0, ("content", self.text()))  # twice; the last one counts for us
        return self._with_extras(fields)

    def _parts(self) -> list[Any]:
        return [self._with_extras([("type", "text"), ("text", self.text())]) for _ in range(self._number(1, 3))]

    def _media(self) -> Pairs:
        if self._random.random() < 0.3:
            data = base64.b64encode(b"ID3\x04" + self._random.randbytes(self._number(100, 20_000))).decode()
            return [("type", "input_audio"), ("input_audio", self._with_extras([("data", data), ("format", "mp3")]))]
        image: Pairs = [("url", self._random.choice([self._png(), self._png(), "https://example.org/a.png"]))]
        if self._random.random() < 0.5:
            image.append(("detail", self._random.choice(["low", "high", "auto"])))
        return [("type", "image_url"), ("image_url", self._with_extras(image))]

    def _png(self) -> str:
        size = struct.pack(">II", self._number(1, 4_000), self._number(1, 4_000))
        data = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + size + self._random.randbytes(self._number(10, 3_000))
        return "data:image/png;base64," + base64.b64encode(data).decode()

    def _calls(self) -> list[Pairs]:
        function: Pairs = [("name", "f0"), ("arguments", self.text())]
        call = self._with_extras([("id", "c1"), ("type", "function"), ("function", self._with_extras(function))])
        answer: Pairs = [("role", "tool"), ("tool_call_id", "c1"), ("content", self.text())]
        return [
            self._with_extras([("role", "assistant"), ("content", None), ("tool_calls", [call])]),
            self._with_extras(answer),
        ]

    def _tool(self, number: int) -> Pairs:
        function: Pairs = [("name", f"f{number}"), ("description", self.text()), ("parameters", self._object())]
        return [("type", "function"), ("function", self._with_extras(function))]

    def _object(self) -> Pairs:
        return [(self._random.choice(WORDS), self._value(2)) for _ in range(self._number(1, 4))]

    def _value(self, depth: int) -> Any:
        kind = self._number(0, 5 if depth else 3)
        if kind > 3:
            return [self._value(depth - 1) for _ in range(self._number(0, 4))] if kind == 4 else self._object()
        return [self.text(), self._number(0, 10**30), None, True][kind]

    def _with_extras(self, fields: Pairs) -> Pairs:
        if self._random.random() < 0.75:
            return fields
        names = [name for name in EXTRA_NAMES if name not in dict(fields)]
        return fields + [(self._random.choice(names), self._extra()) for _ in range(self._number(1, 3))]

    def _extra(self) -> str:
        """Text, because the fields of a message that some dialects know must be text."""
        return self.text()


def write_json(value: Any, *, is_ascii: bool, blank: str) -> str:
    """Like json.dumps, but a list of pairs is an object."""

    def write(one: Any) -> str:
        return write_json(one, is_ascii=is_ascii, blank=blank)

    if is_pairs(value):
        return "{" + f",{blank}".join(f"{write(name)}:{blank}{write(item)}" for name, item in value) + blank + "}"
    if isinstance(value, dict):
        return write([*value.items()])
    if isinstance(value, list):
        return "[" + f",{blank}".join(map(write, value)) + "]"
    return json.dumps(value, ensure_ascii=is_ascii)


def is_pairs(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, tuple) for item in value)


def count_whole(body: bytes) -> int:
    """The tokens of every string in a body and of every name that no template knows, and of images and audio."""
    fields = json.loads(body, object_pairs_hook=list_of_pairs)
    return sum(_count(value) for name, value in fields if name not in ENVELOPE)


def list_of_pairs(pairs: Pairs) -> Any:
    return tuple(pairs)  # a tuple is an object, a list an array


def _count(value: Any) -> int:
    if isinstance(value, str):
        return count_tokens(value)
    if isinstance(value, list):
        return sum(map(_count, value))
    if not isinstance(value, tuple):
        return 0
    if media := [*_media_tokens(dict(value))]:
        return sum(media)
    return sum((0 if name in KNOWN_NAMES else count_tokens(name)) + _count(item) for name, item in value)


def _media_tokens(part: dict[str, Any]) -> Iterator[int]:
    """What the dearest provider counts for an image or for audio, and the text of all other fields."""
    if part.get("type") not in ("image_url", "input_audio"):
        return
    media = dict(part[part["type"]])
    others = {name: value for name, value in media.items() if name not in ("url", "data", "detail", "format")}
    yield sum(_count(value) for value in others.values())
    yield sum(_count(value) for name, value in part.items() if name not in ("type", "image_url", "input_audio"))
    if part["type"] == "input_audio":
        yield len(base64.b64decode(media["data"])) // AUDIO_BYTES_PER_TOKEN
    elif media.get("detail") == "low":
        yield BASE_TOKENS
    else:
        yield BASE_TOKENS + TILE_TOKENS * _tiles(media["url"])


def _tiles(url: str) -> int:
    if not url.startswith("data:"):
        return 8
    width, height = struct.unpack(">II", base64.b64decode(url.partition(",")[2])[16:24])
    scale = min(1.0, 2_048 / max(width, height))
    scale *= min(1.0, 768 / (min(width, height) * scale))
    return int(math.ceil(width * scale / 512) * math.ceil(height * scale / 512))
