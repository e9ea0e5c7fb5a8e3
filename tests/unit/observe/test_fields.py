"""What a line of the log may have: known fields, bounded in length, in every call of the source."""

import ast
import io
import json
from collections.abc import Iterator
from typing import Any

import pytest

from cadenza.core.chat import UserQuestion
from cadenza.observe import make_log
from cadenza.observe.fields import TEXT_CHARS_MAX, TEXTS, WORDS
from cadenza.observe.log import RequestLine
from tests.unit.test_house import SOURCE, parsed

NEEDLE = "n33dle of a client"
LEVELS = {"info", "warning", "error", "critical", "exception", "log"}
# Facts that a call expands: where, and the fields that they have.
EXPANDED = {
    "cli/start.py": {"address", "config", "pid", "store", "version", "workers"},
    "control/retention_keeper.py": {"audit_events", "links", "sessions", "usage"},
    "parts/grounding/search/engines/guard.py": {"open_s"},
}
NAMED_EVENTS = {
    "parts/grounding/search/engines/guard.py",
    "parts/payments/pages/cards.py",
}  # a function logs what its callers name


def written(**fields: Any) -> dict[str, Any]:
    out = io.StringIO()
    make_log(out).info("something happened", **fields)
    line: dict[str, Any] = json.loads(out.getvalue())
    assert line.pop("level") == "info"
    assert line.pop("timestamp")
    return line


def is_of_log(node: ast.expr) -> bool:
    """Whether it is a method of the log that writes a line."""
    if not (isinstance(node, ast.Attribute) and node.attr in LEVELS):
        return False
    return ast.unparse(node.value).rpartition(".")[2] in {"log", "_log"}


def log_calls() -> Iterator[tuple[str, ast.Call]]:
    """Each call of a method of the log, with its file."""
    for name, nodes in parsed(SOURCE):
        calls = (node for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute))
        yield from ((name.removeprefix("src/cadenza/"), call) for call in calls if is_of_log(call.func))


def unknown(file: str, call: ast.Call) -> list[str]:
    """What a call gives to the log that is not on its list."""
    fields = [keyword.arg for keyword in call.keywords]
    found = [name for name in fields if name and name not in WORDS | TEXTS]
    found += ["**"] if None in fields and file not in EXPANDED else []
    *level, event = call.args[:2] if call.func.attr == "log" else call.args[:1]  # type: ignore[attr-defined]
    if len(call.args) > len(level) + 1 or not (isinstance(event, ast.Constant) or file in NAMED_EVENTS):
        found.append(ast.unparse(event))
    return [f"{file}:{call.lineno} {one}" for one in found]


def test_every_call_uses_known_fields() -> None:
    """Each call has one constant event and fields of the list; add a field to observe/fields.py if it is no content."""
    calls = [*log_calls()]
    assert len(calls) > 50
    assert [one for file, call in calls for one in unknown(file, call)] == []
    assert set().union(*EXPANDED.values()) <= WORDS | TEXTS


def test_methods_of_the_log_are_called_where_they_are_named() -> None:
    """None is kept in a variable, where the other tests of this file would not find its calls."""
    methods = [node for _, nodes in parsed(SOURCE) for node in nodes if isinstance(node, ast.Attribute)]
    assert sum(map(is_of_log, methods)) == len([*log_calls()])


def test_the_line_of_a_request_has_known_fields() -> None:
    """The fields that `Observer.record` writes, past the list, are on the list."""
    fields = {*RequestLine.__struct_fields__} - {"level", "timestamp"}  # which every line has
    assert {"request_id", "status", "fault"} <= fields <= WORDS | TEXTS


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        ({"said_by_client": NEEDLE}, {"left_out": ["<str of 18>"]}),
        ({NEEDLE: 1, "exc_info": ValueError(NEEDLE)}, {"left_out": ["1", "<ValueError>"]}),
        ({"class_id": NEEDLE, "status": [NEEDLE, 5]}, {"class_id": "<str of 18>", "status": ["<str of 18>", 5]}),
        ({"class_id": "x" * 201}, {"class_id": "<str of 201>"}),
        ({"reason": ValueError(NEEDLE), "advice": {NEEDLE: 1}}, {"reason": "<ValueError>", "advice": "<dict of 1>"}),
        ({"reason": UserQuestion(0, 0, (NEEDLE,))}, {"reason": "<UserQuestion>"}),
        ({"reason": "a" * 3000}, {"reason": "a" * TEXT_CHARS_MAX + "…"}),
        ({"problems": ["two words"], "pid": 7, "before": None}, {"problems": ["two words"], "pid": 7, "before": None}),
    ],
)
def test_what_is_not_on_the_list_is_left_out(fields: dict[str, Any], shown: dict[str, Any]) -> None:
    """Of a field that is not known, or has a value that does not fit, type and length are written."""
    assert written(**fields) == {"event": "something happened", **shown}
