"""Suites are read, and every mistake in them is named with its line."""

import json
from pathlib import Path
from typing import Any

import pytest

from cadenza.parts.evaluation.haystack import Haystack, Needle, build_haystack
from cadenza.parts.evaluation.suite import SuiteError, load_suite, read_suite

TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
CASE: dict[str, Any] = {
    "id": "one",
    "tags": ["general"],
    "messages": [{"role": "user", "content": "Hi"}],
    "graders": [{"kind": "exact", "texts": ["Hello"]}],
}


def read(*cases: dict[str, Any]) -> None:
    read_suite("suite.jsonl", "\n".join(map(json.dumps, cases)).encode())


def graded(**grader: Any) -> dict[str, Any]:
    return CASE | {"tools": [TOOL], "graders": [grader]}


MISTAKES = {
    "unknown key: 'grader'; did you mean 'graders'?": CASE | {"grader": []},
    "unknown kind of graders[0]: 'exakt'; did you mean 'exact'?": graded(kind="exakt", texts=["a"]),
    "unknown key of graders[0]: 'ignorecase'; did you mean 'ignore_case'?": graded(
        kind="exact", texts=["a"], ignorecase=True
    ),
    "graders[0] has no `kind`": graded(texts=["a"]),
    "graders[0].value: must be a number, not a string": graded(kind="number", value="4"),
    "`value` and `tolerance` are finite": graded(kind="number", value=1, tolerance=-1),
    "does not compile": graded(kind="regex", pattern="(a"),
    "not a JSON schema": graded(kind="json", schema={"type": "objet"}),
    "only references within it": graded(kind="json", schema={"$ref": "http://127.0.0.1:1/x"}),
    "'http://json-schema.org/x'; only references within it": graded(
        kind="json", schema={"$schema": "http://json-schema.org/x"}
    ),
    "which is not among the case's `tools`": graded(kind="tool_call", calls=[{"name": "see"}]),
    "matches a subset, so its `arguments` is an object": graded(
        kind="tool_call", calls=[{"name": "look", "arguments": 3, "match": "subset"}]
    ),
    "at least one text": graded(kind="contains", texts=[]),
    "is not of the form [a-z0-9_-]{1,40}": CASE | {"tags": ["Big Tag"]},
    "`tags` is empty": CASE | {"tags": []},
    "`graders` is empty": CASE | {"graders": []},
    "`id` has 1 to 80": CASE | {"id": "a b"},
    "`role` is one of": CASE | {"messages": [{"role": "bot", "content": "x"}]},
    "`content` is a text": CASE | {"messages": [{"role": "user", "content": 3}]},
    "nothing to answer": CASE | {"messages": [{"role": "assistant", "content": "x"}]},
    "needs `tool_call_id`": CASE | {"messages": [{"role": "tool", "content": "x"}]},
    "must have {haystack} in its text": CASE | {"haystack": {"seed": 1, "words": 10}},
    "`words` of a haystack": CASE | {"haystack": {"seed": 1, "words": 10**9}},
    "`max_tokens` is at least 1": CASE | {"max_tokens": 0},
    "messages: missing": {"id": "one", "tags": ["a"], "graders": CASE["graders"]},
}


@pytest.mark.parametrize("words", MISTAKES)
def test_a_mistake_is_named_with_its_line(words: str) -> None:
    """The sentence has the file, the line and what is wrong."""
    with pytest.raises(SuiteError) as raised:
        read(CASE, MISTAKES[words] | {"id": MISTAKES[words].get("id", "x") if "`id`" in words else "two"})
    assert len(raised.value.mistakes) == 1
    assert raised.value.mistakes[0].startswith("suite.jsonl:2: ")
    assert words in raised.value.mistakes[0]


def test_all_mistakes_are_reported_at_once() -> None:
    """One bad line hides no other; blank lines count as lines."""
    with pytest.raises(SuiteError) as raised:
        read_suite("a", b'{"id": 1}\n\nnot json\n[]\n' + json.dumps(CASE).encode() + b"\n" + json.dumps(CASE).encode())
    places = [mistake.split(":")[1] for mistake in raised.value.mistakes]
    assert places == ["1", "3", "4", "6"]
    assert raised.value.mistakes[-1] == "a:6: the id 'one' is used on line 5 already"


def test_an_empty_or_absent_file_is_a_sentence(tmp_path: Path) -> None:
    """A suite without cases, and a file that is not there, are named."""
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(SuiteError, match="has no cases"):
        load_suite(tmp_path / "empty.jsonl")
    with pytest.raises(SuiteError, match="cannot be read: No such file"):
        load_suite(tmp_path / "absent.jsonl")


def test_the_digest_follows_the_content_and_not_the_name(tmp_path: Path) -> None:
    """A renamed suite has the same digest; another grader makes another one."""
    (tmp_path / "a.jsonl").write_text(json.dumps(CASE))
    (tmp_path / "b.jsonl").write_text(json.dumps(dict(reversed(CASE.items()))) + "\n")
    (tmp_path / "c.jsonl").write_text(json.dumps(CASE).replace("Hello", "Hallo"))
    first, renamed, other = (load_suite(tmp_path / f"{name}.jsonl") for name in "abc")
    assert first.digest == renamed.digest != other.digest


def test_a_haystack_is_the_same_for_the_same_seed() -> None:
    """Filler has about the asked number of words, and its needles at their places."""
    haystack = Haystack(3, 1000, (Needle("The needle is here.", 0.5),))
    text = build_haystack(haystack)
    assert text == build_haystack(haystack)
    assert 1000 <= len(text.split()) <= 1030
    assert 0.45 < text.index("The needle is here.") / len(text) < 0.55
