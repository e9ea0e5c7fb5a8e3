"""The child process in which patterns, schemas and code run that a suite or a model wrote. Only graders.py starts it.

It imports everything before it enters its sandbox. Code is run once, in a child of its own, whose limits are final.
The child never learns what a check expects: it returns what the code returned, and its parent compares. So code that
takes the child over, and answers in its place, still has to know the right values. Where the system does not filter
system calls, code is not run.
"""

import importlib
import io
import json
import re
import resource
import sys
import time
from typing import Any

import jsonschema_rs
import msgspec

from cadenza.children.confine import allow_cpu, confine, enter_sandbox, read_limits, serve_tasks
from cadenza.evaluation.code_child_messages import (
    TASKS,
    CodeTask,
    Matched,
    NotConfined,
    PatternTask,
    Ran,
    Returned,
    SchemaTask,
)

OUTPUT_CHARS_MAX = 65_536
VALUE_CHARS_MAX = 65_536
ERROR_CHARS_MAX = 200
# What the code of an answer may import: it is loaded before, because no file can be opened later.
MODULES = (
    *("abc", "array", "bisect", "calendar", "cmath", "collections", "collections.abc", "contextlib", "copy", "csv"),
    *("dataclasses", "datetime", "decimal", "difflib", "enum", "fractions", "functools", "hashlib", "heapq", "io"),
    *("itertools", "json", "math", "operator", "queue", "random", "re", "statistics", "string", "struct", "textwrap"),
    *("time", "types", "typing", "unicodedata", "uuid", "base64", "binascii", "graphlib", "numbers", "keyword"),
    *("_strptime", "encodings.idna", "encodings.latin_1", "encodings.ascii", "threading", "sys", "os", "traceback"),
)


class OutputTooLong(Exception):
    """The code printed more than is kept."""


class BoundedOutput(io.StringIO):
    """The standard output of code."""

    def write(self, text: str, /) -> int:
        if self.tell() + len(text) > OUTPUT_CHARS_MAX:
            raise OutputTooLong
        return super().write(text)


def main() -> None:
    limits = read_limits()
    confine(limits)
    for name in MODULES:
        importlib.import_module(name)
    is_sandboxed = False

    def serve(head: bytearray, body: bytearray) -> bytes:
        nonlocal is_sandboxed
        task = TASKS.decode(head)
        if isinstance(task, CodeTask):
            limit_s = int(time.process_time()) + 1 + limits.cpu_s
            resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s + 1))
            is_confined = enter_sandbox(fixes_limits=True)
            return msgspec.msgpack.encode(run_code(task, body.decode()) if is_confined else NotConfined())
        if not is_sandboxed:
            enter_sandbox()
            is_sandboxed = True
        allow_cpu(limits.cpu_s)
        return msgspec.msgpack.encode(match(task, body))

    serve_tasks(serve)


def match(task: PatternTask | SchemaTask, body: bytearray) -> Matched:
    try:
        if isinstance(task, PatternTask):
            pattern = re.compile(task.pattern, task.flags)
            text = body.decode()
            return Matched(bool(pattern.fullmatch(text) if task.is_full else pattern.search(text)))
        value = msgspec.json.decode(body)
        wrong = next(iter(jsonschema_rs.validator_for(task.schema).iter_errors(value)), None)
    except (ValueError, RecursionError, MemoryError, re.error) as error:
        return Matched(is_match=False, reason=type(error).__name__)
    return Matched(wrong is None, wrong.message[:ERROR_CHARS_MAX] if wrong else "")


def run_code(task: CodeTask, code: str) -> Ran:
    output = sys.stdout = BoundedOutput()
    sys.stdin, sys.stderr = io.StringIO(), io.StringIO()
    names: dict[str, Any] = {"__name__": "answer" if task.function else "__main__"}
    try:
        exec(compile(code, "answer", "exec"), names)  # noqa: S102 that is what this process is for
        function = names[task.function] if task.function else None
    except BaseException as error:  # noqa: BLE001 the code may raise anything, SystemExit too
        is_exit = isinstance(error, SystemExit) and not error.code
        return Ran(output.getvalue(), raised="" if is_exit and not task.function else name_of(error))
    return Ran(output.getvalue(), tuple(call(function, arguments) for arguments in task.calls))


def call(function: Any, arguments: tuple[Any, ...]) -> Returned:  # noqa: ANN401 whatever the code has defined
    try:
        text = json.dumps(function(*arguments), default=sorted)
    except BaseException as error:  # noqa: BLE001 likewise
        return Returned(raised=name_of(error))
    return Returned(text) if len(text) <= VALUE_CHARS_MAX else Returned(raised="a value that is too long")


def name_of(error: BaseException) -> str:
    return type(error).__name__[:ERROR_CHARS_MAX]


if __name__ == "__main__":
    main()
