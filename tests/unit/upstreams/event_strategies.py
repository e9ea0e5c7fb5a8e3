"""Events of an upstream's stream, made by Hypothesis: ordinary ones, unusual ones and broken_events ones."""

import json
from typing import Any

from hypothesis import strategies as st

SEPARATORS = [(",", ":"), (", ", ": ")]
TRICKY = ['"content":"Hi"', '"content"', "Hi", "content", '","content":"', "\\", '"', "}]}", "\x00", "\x1f", "é", "🎼"]

texts = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    st.sampled_from([*TRICKY, "", " ", "\x7f", "\n", "\u2028", "\ud7ff"]),
)
words = st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters='"\\'), min_size=1, max_size=8)


def encode(value: Any, separators: tuple[str, str] = SEPARATORS[0], *, is_ascii: bool = False) -> bytes:
    return json.dumps(value, separators=separators, ensure_ascii=is_ascii).encode()


def event(delta: Any, finish: str | None = None, note: str = "", **fields: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish, "note": note}
    return {"id": "c-1", "object": "chat.completion.chunk", "created": 7, "choices": [choice], **fields}


def arguments(text: str, index: int = 0, **name: str) -> dict[str, Any]:
    """A part of a call."""
    return {"tool_calls": [{"index": index, "function": {**name, "arguments": text}}]}


@st.composite
def text_events(draw: st.DrawFn) -> bytes:
    """An event with one text, of the answer or of a call. Many in a row differ only in the text."""
    note, model = (
        draw(st.sampled_from(["", '"content":"Hi"', '"arguments":"Hi"', "content"])),
        draw(st.sampled_from(["a", "b"])),
    )
    separators = draw(st.sampled_from([*SEPARATORS[:1] * 4, SEPARATORS[1]]))
    text, is_answer = draw(texts), draw(st.sampled_from([True, True, False]))
    delta = {"content": text} if is_answer else arguments(text, draw(st.sampled_from([0, 0, 1])))
    return encode(event(delta, note=note, model=model), separators, is_ascii=draw(st.booleans()))


@st.composite
def other_events(draw: st.DrawFn) -> bytes:
    """An event with more than one text, or with something else."""
    text, more = draw(texts), draw(texts)
    call = {"index": 0, "id": "t", "function": {"name": "find", "arguments": text}}
    counts = {"prompt_tokens": 3, "completion_tokens": 2}
    choices = [{"index": index, "delta": {"content": content}} for index, content in enumerate((text, more))]
    return encode(
        draw(
            st.sampled_from(
                [
                    event({"role": "assistant", "content": text}),
                    event({"content": text}, finish="stop"),
                    event({}, finish="length"),
                    event({"content": text}, usage=counts),
                    event({"content": text}, usage={"prompt_tokens": -1}),
                    event({"content": text}, usage=None),
                    {"choices": [], "usage": counts},
                    event({"tool_calls": [call]}),
                    event({"content": text, "tool_calls": [call]}),
                    event({"content": text, "function_call": {"name": "find", "arguments": more}}),
                    event({"content": text, "reasoning": more}),
                    event({"content": text, "reasoning_content": "content"}),
                    event({"reasoning": text}),
                    event({"content": [{"type": "text", "text": text}], "x": {"text": text}}),
                    event({"content": None}),
                    event({"content": 7}),
                    event({"content": text}, content=more),
                    event({"content": text, "message": more}),
                    event({"text": text}, choice={"content": text}),
                    {"choices": choices},
                    {"choices": choices[::-1]},
                    {"choices": [choices[0], choices[0]]},
                    {"choices": choices[1:]},
                    {"choices": [{"message": {"content": text}}]},
                    {"choices": [{"delta": None, "message": {"content": text}}]},
                    {"choices": [{"delta": {"content": text}, "message": {"content": more}}]},
                    {"error": {"code": 429, "message": text}},
                    {**event({"content": text}), "error": text or "x"},
                    {"choices": {"content": text}},
                    [],
                ]
            )
        )
    )


@st.composite
def events_with_a_name_twice(draw: st.DrawFn) -> bytes:
    """One object has the field `content` twice; the last one counts."""
    first, last = encode(draw(texts)), encode(draw(texts))
    names = draw(st.sampled_from([(b'"content":', b'"content":'), (b'"content":', b'"content" :')]))
    delta = names[0] + first + b"," + names[1] + last
    return b'{"choices":[{"index":0,"delta":{' + delta + b"}}]}"


broken_events = st.sampled_from(
    [b"[DONE]", b" [DONE] ", b"", b"<html>", b"{", b'{"choices":[{"delta":{"content":"\xff"}}]}']
)
event_lists = st.lists(
    st.one_of(text_events(), text_events(), text_events(), other_events(), events_with_a_name_twice(), broken_events),
    max_size=12,
)


LINE_ENDS = [b"\n", b"\n", b"\r\n", b"\r"]


@st.composite
def reads(draw: st.DrawFn) -> bytes:
    """One read: an event, several or a part of one, with any line ends, comments and byte order mark."""
    lines = list[bytes]()
    for data in draw(
        st.lists(st.one_of(text_events(), text_events(), other_events(), broken_events), min_size=1, max_size=3)
    ):
        place = draw(st.one_of(st.none(), st.integers(0, len(data))))
        field = draw(
            st.sampled_from([b"data: ", b"data: ", b"data: ", b"data:", b"data:  ", b"event: x\ndata: ", b": "])
        )
        if place is None:
            lines += [field + data, b""]
        else:  # in two lines; the second may lack its `data:`
            lines += [field + data[:place], draw(st.sampled_from([b"data: ", b"data:", b""])) + data[place:], b""]
    end = draw(st.sampled_from(LINE_ENDS))
    read = draw(st.sampled_from([b"", b"", b"", b"\xef\xbb\xbf", end])) + end.join(lines) + end
    start = draw(st.sampled_from([0, 0, 0, 0, 1, 30]))
    return read[start : draw(st.sampled_from([len(read)] * 4 + [len(read) - 1, 40]))]
