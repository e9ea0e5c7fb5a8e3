"""What a line of the log may have: a list of fields. Whatever is not on it is left out.

A word is a number, an id, a name from the config, a word of a fixed set, or an address: it has no blanks. A text is a
sentence that the program wrote, or a path; never what a client or a model wrote. tests/unit/observe/test_fields.py
finds the calls that use a field that is not listed here.
"""

import re
from collections.abc import Mapping
from typing import Any

from cadenza.core.content import describe

WORD = re.compile(r"\S{0,200}")
TEXT_CHARS_MAX = 2000
ITEMS_MAX = 50
CUT = "…"
LEFT_OUT = "left_out"  # the types and lengths of what a line had in other fields

WORDS = frozenset(
    {
        *("id", "request_id", "completion_id", "key_id", "class_id", "endpoint", "engine", "process"),
        *("status", "fault", "cause", "kind", "move", "signal", "parser", "error", "logger"),
        *("ms", "open_s", "pause_s", "limit_s", "prompt_tokens", "completion_tokens"),
        *("short_nano", "charged_nano", "corrected_nano"),
        *("audit_events", "links", "sessions", "usage"),  # that were removed
        *("accounts", "charged", "dropped", "moves", "requests", "times", "tries"),
        *("waiting", "workers", "threads", "is_last", "version", "before"),
        *("pid", "code", "exit_code", "address", "classes", "limits", "sections", LEFT_OUT),
    }
)
TEXTS = frozenset(
    {
        *("event", "reason", "result", "advice", "todo", "problems", "places"),
        *("config", "copy", "model", "provider", "providers", "store"),  # as the config names them
        "said",  # by the child of the embedded model, before a request can reach it
    }
)


def keep_known(line: Mapping[str, object]) -> dict[str, object]:
    """The line with its known fields only."""
    known = dict[str, object]()
    others = list[str]()
    for name, value in line.items():
        if name in TEXTS:
            known[name] = _bounded(value, _text)
        elif name in WORDS:
            known[name] = _bounded(value, _word)
        else:  # its name is not written either: it may be content too
            others.append(describe(value))
    if others:
        known[LEFT_OUT] = others
    return known


def _bounded(value: object, bound: Any) -> object:  # noqa: ANN401 one of the two functions below
    return [bound(one) for one in value[:ITEMS_MAX]] if isinstance(value, list) else bound(value)


def _word(value: object) -> object:
    return value if _is_number(value) or (isinstance(value, str) and WORD.fullmatch(value)) else describe(value)


def _text(value: object) -> object:
    if isinstance(value, str):
        return value if len(value) <= TEXT_CHARS_MAX else value[:TEXT_CHARS_MAX] + CUT
    return value if _is_number(value) else describe(value)


def _is_number(value: object) -> bool:
    return value is None or isinstance(value, int | float)
