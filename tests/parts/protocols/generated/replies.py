"""Upstream replies, each made from a seed: what a model may say, in whatever parts an upstream may send it."""

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import msgspec

from cadenza.core.faults import FaultKind
from cadenza.core.grounding import NO_GROUNDING, Source
from cadenza.core.money import Price
from cadenza.core.records import Usage
from cadenza.core.tool_calls import ToolCallPart
from cadenza.gateway.relay import ReplyHead
from cadenza.upstreams.base import Fault, Piece, Sink
from tests.grounded_answer import TAG, cited

Step = Piece | list[str]  # texts that arrive together are one step
HEAD = ReplyHead("chatcmpl-one", 1_800_000_000, "forte", Price(1_070, 3_450))
SOURCES = (Source("https://a.example/1", "A"), Source("https://b.example/2", 'The "B"'))
# Characters that a format, JSON, SSE, UTF-8 or Python may take for something else, beside those of all Unicode.
ODD = '%%b%d"\\\n\r\t\0\x7f\x85\u2028\u2029\ufeff\uffff\u00e9\u0301\U0001f600\U0010ffff{}[]<>:,'
ODD_TEXTS = ("\n\n", "data: [DONE]\n\n", "event: error\n", "%", "%b", "%%", "\\u0000", "\\ud83d", "</", "null", " [1]")
WORDS = (" the", " chord", "Hello", ",", " ", "\n", " 1.5", " ça", " 音", "{", "}")
REASONING = ("reasoning_content", "reasoning", "both", "reasoning_details")
FINISHES = ("stop", "stop", "stop", "tool_calls", "tool_calls", "length", "content_filter", "eos")
NAMES = ("look_up", "files__read", "f", "a-name.with-64_characters" + 39 * "x")


class GeneratedReply(msgspec.Struct, frozen=True):
    """The steps of an upstream, and what was asked for. A fault ends them, or the last piece has a reason."""

    head: ReplyHead
    steps: list[Step]
    fault: Fault | None
    shows_thinking: bool
    is_encrypted: bool

    @property
    def is_counted(self) -> bool:
        """Whether its upstream gives the counts."""
        return any(step.usage for step in self.steps if isinstance(step, Piece))


class SteppedReply:
    """Hands the steps to a sink as an upstream does."""

    def __init__(self, reply: GeneratedReply, seed: int) -> None:
        self._reply = reply
        self._random = Random(seed)

    async def deliver(self, sink: Sink) -> None:
        for step in self._reply.steps:
            if isinstance(step, Piece):
                sink.take(step)
                if self._random.random() < 0.5:
                    sink.flush()
            else:
                sink.flush()
                sink.take_texts(step)
        if self._reply.fault:
            raise self._reply.fault

    async def close(self) -> None:
        """Nothing to close."""


def make_reply(seed: int) -> GeneratedReply:
    random = Random(seed)
    has_tools, is_grounded = random.random() < 0.5, random.random() < 0.15
    grounding = cited(*SOURCES) if is_grounded and not has_tools else NO_GROUNDING
    head = msgspec.structs.replace(HEAD, has_tools=has_tools, grounding=grounding, shows_cost=random.random() < 0.1)
    steps = list(_steps(random, is_grounded=grounding is not NO_GROUNDING))
    fault = Fault(random.choice(list(FaultKind))) if random.random() < 0.15 else None
    is_cut = random.random() < 0.1
    if fault or is_cut:
        steps = steps[: random.randint(0, len(steps))]
    if fault is None:
        steps += _ends(random, "length" if is_cut else random.choice(FINISHES))
    if fault is None and random.random() < 0.1:
        steps = [_in_one(steps)]
    return GeneratedReply(head, steps, fault, random.random() < 0.7, random.random() < 0.5)


def make_text(random: Random, chars_max: int = 12) -> str:
    kind = random.random()
    if kind < 0.5:
        return random.choice(WORDS)
    if kind < 0.6:
        return random.choice(ODD_TEXTS)
    return "".join(_character(random) for _ in range(random.randint(0, chars_max)))


def _character(random: Random) -> str:
    if random.random() < 0.5:
        return random.choice(ODD)
    code = random.randrange(random.choice((0x80, 0x800, 0x10000, 0x110000)))
    return chr(code) if not 0xD800 <= code < 0xE000 else "?"


def _steps(random: Random, *, is_grounded: bool) -> Iterator[Step]:
    """Reasoning, text, a refusal and calls, mostly in this order; or in any, but a refusal comes after the text."""
    name = random.choice(REASONING)
    if random.random() < 0.5:
        yield Piece(has_begun=True)
    phases: list[Callable[[], list[Step]]] = [
        lambda: _reasoning(random, name),
        lambda: _texts(random, is_grounded=is_grounded),
        lambda: _calls(random),
    ]
    if random.random() < 0.2:
        phases += phases[:2]
        random.shuffle(phases)
    for phase in phases:
        if random.random() < 0.6:
            yield from phase()
    if random.random() < 0.1 and not is_grounded:  # the end of a text may wait for a tag, while a refusal does not
        yield from [Piece(extras={"refusal": make_text(random)}) for _ in range(random.randint(1, 3))]


def _texts(random: Random, *, is_grounded: bool) -> list[Step]:
    steps: list[Step] = []
    for _ in range(random.randint(1, 5)):
        texts = [make_text(random) for _ in range(random.randint(1, 4))]
        if is_grounded and random.random() < 0.5:
            cut = random.randint(0, len(TAG))
            texts += [" [1]", TAG[:cut], TAG[cut:], " [2]."]
        texts = [text for text in texts if text]  # an upstream's empty texts are no pieces of text
        if random.random() < 0.5:
            steps += map(Piece, texts)
        elif texts:
            steps.append(texts)
    return steps


def _reasoning(random: Random, name: str) -> list[Step]:
    steps: list[Step] = []
    for _ in range(random.randint(1, 4)):
        text = make_text(random)
        extras: dict[str, Any] = {name: text}
        if name == "both":
            extras = {"reasoning_content": text, "reasoning": text}
        elif name == "reasoning_details":
            extras = {"reasoning": text, name: [{"index": 0, "type": "reasoning.text", "text": text}]}
        if text:
            steps.append(Piece(extras=extras))
    return steps


def _calls(random: Random) -> list[Step]:
    """Up to three calls: numbered, with parts in any order; or one after the other, without a number or all with 0."""
    style = random.choice(("numbered", "numbered", "whole", "all zero"))
    base, queues = random.choice((0, 0, 5)), []
    for number in range(random.randint(1, 3)):
        index = {"numbered": base + number, "whole": None, "all zero": 0}[style]
        parts = _cut(random, _arguments(random)) if style == "numbered" else [_arguments(random) or "{}"]
        id_ = f"{random.choice(('call_', 'toolu_', ''))}{random.getrandbits(40):x}" if random.random() < 0.8 else ""
        extra = {"google": {"thought_signature": make_text(random)}} if random.random() < 0.1 else None
        first = ToolCallPart(index, id_, random.choice(NAMES), parts[0], extra_content=extra)
        queues.append([first, *(ToolCallPart(index, arguments=part) for part in parts[1:])])
    if style != "numbered" or random.random() < 0.5:
        return [Piece(calls=(part,)) for queue in queues for part in queue]
    steps: list[Step] = []
    while queues := [queue for queue in queues if queue]:
        together = random.randint(1, len(queues))
        steps.append(Piece(calls=tuple(queue.pop(0) for queue in random.sample(queues, together))))
    return steps


def _arguments(random: Random) -> str:
    kind = random.random()
    if kind < 0.1:
        return random.choice(("", "{}", " {} ", "\n{}"))
    value = {make_text(random): _value(random, 2) for _ in range(random.randint(0, 3))}
    text = msgspec.json.encode(value).decode()
    if random.random() < 0.2:
        text = msgspec.json.format(text, indent=2)
    return random.choice(("", "", "", " ", "\n")) + text


def _value(random: Random, depth: int) -> Any:
    kind = random.randint(0, 6 if depth else 4)
    if kind < 2:
        return make_text(random)
    if kind < 5:
        return random.choice((0, -1, 1.5e300, True, None, 2**53))
    values = [_value(random, depth - 1) for _ in range(random.randint(0, 2))]
    return values if kind == 5 else {make_text(random): value for value in values}


def _cut(random: Random, text: str) -> list[str]:
    """The parts of a text, among them empty ones."""
    places = sorted(random.randint(0, len(text)) for _ in range(random.randint(0, 4)))
    return [text[start:end] for start, end in zip([0, *places], [*places, len(text)], strict=True)]


def _ends(random: Random, reason: str) -> list[Step]:
    """The reason, and the counts if the upstream gives any: with the last piece, behind it, or with each."""
    details = {"reasoning_tokens": random.randint(0, 9)} if random.random() < 0.3 else None
    usage = Usage(random.randint(1, 60), random.randint(0, 90), cached_tokens=0, completion_details=details)
    usage = msgspec.structs.replace(usage, cached_tokens=random.randint(0, usage.prompt_tokens))
    way = random.random()
    if way < 0.4:
        return [Piece(finish_reason=reason), Piece(usage=usage)]
    if way < 0.7:
        return [Piece(finish_reason=reason, usage=usage)]
    if way < 0.8:
        return [Piece(usage=msgspec.structs.replace(usage, completion_tokens=1)), Piece("", reason, usage)]
    return [Piece(finish_reason=reason, has_bad_usage=way < 0.85)]


def _in_one(steps: list[Step]) -> Piece:
    """The same as a reply that is not a stream."""
    pieces = [piece for step in steps for piece in ([step] if isinstance(step, Piece) else map(Piece, step))]
    extras: dict[str, Any] = {}
    for name, value in [item for piece in pieces for item in piece.extras.items()]:
        extras[name] = extras[name] + value if name in extras else value
    return Piece(
        "" if "refusal" in extras else "".join(piece.content for piece in pieces),
        next((piece.finish_reason for piece in reversed(pieces) if piece.finish_reason), None),
        next((piece.usage for piece in reversed(pieces) if piece.usage), None),
        any(piece.has_bad_usage for piece in pieces),
        calls=tuple(part for piece in pieces for part in piece.calls),
        extras=extras,
    )
