"""Parts of messages: files are found where they stand, images and audio need a model that takes them."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadenza.core.chat import ChatRequest
from cadenza.core.errors import InvalidRequest
from cadenza.core.message_json import find_content
from cadenza.gateway.message_parts import FILES_MAX
from cadenza.gateway.validate import parse_chat

TEXT = {"type": "text", "text": "What is this?"}
FILE = {"type": "file", "file": {"filename": "a.txt", "file_data": "aGVsbG8="}}


def parse(*content: Any, role: str = "user", indent: int | None = None, **fields: Any) -> ChatRequest:
    body = {"messages": [{"role": role, "content": list(content)}], **fields}
    return parse_chat(json.dumps(body, indent=indent).encode())


@pytest.mark.parametrize("indent", [None, 1, 4])
def test_a_file_is_found_where_it_stands(indent: int | None) -> None:
    """Its span in the JSON of its message is exactly its part, and its data is the JSON string that was sent."""
    url = "data:text/plain;base64,aGVsbG8="
    other = {"type": "file", "file": {"file_data": url}}
    chat = parse(FILE, TEXT, other, FILE, indent=indent)
    [message] = chat.messages
    assert [json.loads(bytes(message)[one.start : one.end]) for one in chat.files] == [FILE, other, FILE]
    assert [json.loads(bytes(one.data)) for one in chat.files] == ["aGVsbG8=", url, "aGVsbG8="]
    assert [one.name for one in chat.files] == ["a.txt", "file", "a.txt"]


def test_a_file_is_found_in_the_message_that_is_forwarded() -> None:
    """A message that is written anew, because upstreams refuse a field of it, still has its file where it is said."""
    message = {"role": "user", "tool_calls": [], "content": [TEXT, FILE]}
    chat = parse_chat(json.dumps({"messages": [message]}, indent=2).encode())
    [[file], [forwarded]] = chat.files, chat.messages
    assert b"tool_calls" not in bytes(forwarded)
    assert json.loads(bytes(forwarded)[file.start : file.end]) == FILE


def test_files_are_no_text_of_the_prompt() -> None:
    """Only the text parts are counted, and the data of a file adds no bytes to the bound."""
    chat = parse(FILE, TEXT)
    assert chat.texts == [TEXT["text"]]
    assert (chat.media.size_bytes, chat.media.tokens) == (len('"aGVsbG8="'), 0)


def test_the_number_of_files_is_limited() -> None:
    """Twenty files are accepted, one more is a 400."""
    assert len(parse(*[FILE] * FILES_MAX).files) == FILES_MAX
    with pytest.raises(InvalidRequest, match="21 files were sent; at most 20"):
        parse(*[FILE] * (FILES_MAX + 1))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda some: st.lists(some) | st.dictionaries(st.text(), some),
)


@given(
    before=st.dictionaries(st.text(), JSON, max_size=3),
    content=st.text() | st.lists(JSON),
    indent=st.none() | st.just(1),
)
def test_the_content_is_found_among_other_fields(before: dict[str, Any], content: Any, indent: int | None) -> None:
    """Whatever the other fields are, also if they look like the content."""
    fields = {**before, "other": content, "content": content, "content ": content}
    raw = json.dumps(fields, indent=indent).encode()
    span = find_content(msgspec.Raw(raw))
    assert span is not None
    assert json.loads(raw[slice(*span)]) == content
    assert raw[: span[0]].rstrip().endswith(b'"content":')


def test_a_message_with_a_field_twice_has_no_certain_content() -> None:
    """Such a message gets nothing added; if it has files, it is refused."""
    assert find_content(msgspec.Raw(b'{"role":"user","content":"a","content":"b"}')) is None
    twice = b'{"role":"user","content":[],"content":[%b]}' % json.dumps(FILE).encode()
    with pytest.raises(InvalidRequest, match="has a field twice"):
        parse_chat(b'{"messages":[%b]}' % twice)
