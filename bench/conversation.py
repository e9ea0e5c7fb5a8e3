"""Requests as a coding agent sends them, from a seed: 24 tools, and a history of tool calls with their results.

A conversation is made once, as encoded messages. A request is a beginning of it and one last call, so a later turn
begins with what the turns before it sent.
"""

import functools
import itertools
import random

import msgspec

from bench.workload import TEXT, Shape
from cadenza.core.tool_calls import wrap_id

TOOLS = {  # by name: what it does, and its parameters
    "read_file": ("Read a file of the workspace", "path offset:integer limit:integer"),
    "write_file": ("Write a file, and replace it if it exists", "path content"),
    "edit_file": ("Replace one exact string in a file", "path old_text new_text replace_all:boolean"),
    "apply_patch": ("Apply a unified diff to the workspace", "patch dry_run:boolean"),
    "list_folder": ("List the files of a folder", "path depth:integer ignore:array"),
    "find_files": ("Find files by a glob pattern", "pattern path limit:integer"),
    "search_text": ("Search the contents of files by a regular expression", "pattern path glob context:integer"),
    "run_command": ("Run a command in a shell and return its output", "command timeout_ms:integer background:boolean"),
    "read_output": ("Read what a command in the background has written", "job filter"),
    "stop_command": ("Stop a command that runs in the background", "job"),
    "fetch_page": ("Fetch a page of the web and return it as Markdown", "url prompt"),
    "search_web": ("Search the web", "query allowed_domains:array blocked_domains:array"),
    "list_tasks": ("Return the list of tasks", "status"),
    "write_tasks": ("Replace the list of tasks", "tasks:array"),
    "start_agent": ("Start another agent with a task of its own", "description prompt kind"),
    "ask_user": ("Ask the user a question with a few choices", "question choices:array several:boolean"),
    "edit_notebook": ("Replace a cell of a notebook", "path cell new_source kind"),
    "show_diff": ("Show what has changed since a commit", "commit paths:array"),
    "commit_changes": ("Commit the changes of the workspace", "message paths:array"),
    "read_image": ("Look at an image of the workspace", "path detail"),
    "find_symbol": ("Find where a symbol is defined and used", "name kind path"),
    "rename_symbol": ("Rename a symbol in the whole workspace", "name new_name path"),
    "run_tests": ("Run the tests that match an expression", "expression path timeout_ms:integer"),
    "finish_plan": ("Show a plan to the user, and wait for approval", "plan"),
}
RULES = (
    " Use this tool instead of a shell command where both would do. Paths are absolute and inside the workspace; a path"
    " outside of it is refused. A result of more than 2,000 lines is cut, and its last line says how many are missing:"
    " ask for the rest with a second call if it matters. Calls that do not depend on each other belong in one reply."
)
ABOUT = (
    "The {name} of this call, as the workspace has it. It must not be empty, and is taken literally: quotes, "
    "backslashes and spaces at its ends count."
)
SYSTEM_BYTES = 6_000
RESULT_LINES = (4, 60)
CODE = (
    '    def {a}_{b}(self, {c}: int, *, {d}: str = "{a}") -> {b}:',
    '        """The {a} of a {b}, or None if its {c} has no {d}."""',
    "        if self._{a} is None or {c} > len(self._{b}):",
    '            raise ValueError(f"{a}: {{{c}}} is more than {{self._{b}}}")',
    "        for {c}, {d} in enumerate(self._{a}, start={n}):",
    '            found[{c}] = {d}.strip().partition("\\t")[{n}]',
    "        return [{c} for {c} in {a}.values() if {c}.{d} != {n}]",
    "",
    'src/{a}/{b}.py:{n}: {c}_{d} = {a}.{b}({n}, "{d}")',
    "    # the {a} has at most {n} of {b}: see {c}/{d}.md",
)
NAMES = [
    "account",
    "bucket",
    "cache",
    "digest",
    "entry",
    "frame",
    "grant",
    "header",
    "index",
    "journal",
    "key",
    "lease",
    "mark",
    "note",
    "order",
    "page",
]


class Conversation:
    """The turns of one agent, up to bodies of `bytes_max`."""

    def __init__(self, seed: int, bytes_max: int) -> None:
        self._random = random.Random(seed)  # noqa: S311 the same conversation in every run
        self._ids = itertools.count(1)
        self._system = self._text(SYSTEM_BYTES)
        self._steps = list[bytes]()
        size = 0
        while size < bytes_max:
            self._steps.append(self._step())
            size += len(self._steps[-1]) + 1

    def body(self, model: str, shape: Shape, size: int, tag: str = "") -> bytes:
        """A turn whose request has this many bytes; its last call has the result, with the tag, that fills it."""
        system = {"role": "system", "content": f"{shape.tag} {self._system}"}
        head = b'{"messages":[%b,%b' % (_encode(system), _encode({"role": "user", "content": TEXT}))
        end = b'],"model":%b,"max_tokens":4096,"stream":true,"stream_options":{"include_usage":true},"tools":%b}' % (
            _encode(model),
            tools(),
        )
        call, empty = _call("call_last", "run_tests", "a"), _result("call_last", tag)
        last = _encode({"role": "assistant", "content": None, "tool_calls": [call]}) + b"," + _encode(empty)
        used, room = list[bytes](), size - len(head) - len(end) - len(last) - 1
        assert room > 0, f"a body of {size} bytes has no room for the system message and the tools"
        for step in self._steps:
            if len(step) + 1 > room:
                break
            used.append(step)
            room -= len(step) + 1
        filled = last[:-2] + (TEXT.encode() * (room // len(TEXT) + 1))[:room] + last[-2:]
        return b",".join((head, *used, filled)) + end

    def _step(self) -> bytes:
        """One or two parallel calls, with ids as Cadenza gives them, and their results."""
        names = self._random.choices(list(TOOLS), k=self._random.choice((1, 1, 2)))
        calls = [_call(wrap_id(f"{next(self._ids):032d}"), name, self._random.choice(NAMES)) for name in names]
        said = self._random.choice((None, TEXT))
        messages: list[object] = [{"role": "assistant", "content": said, "tool_calls": calls}]
        messages += [_result(str(call["id"]), self._code(self._random.randint(*RESULT_LINES))) for call in calls]
        return b",".join(map(_encode, messages))

    def _text(self, size: int) -> str:
        return self._code(size // 40)[:size]

    def _code(self, lines: int) -> str:
        choose, line = self._random.choice, self._random.choices(CODE, k=lines)
        return "\n".join(
            one.format(a=choose(NAMES), b=choose(NAMES), c=choose(NAMES), d=choose(NAMES), n=number)
            for number, one in enumerate(line)
        )


@functools.cache
def tools() -> bytes:
    """The 24 tools with their schemas, some 20 kB."""
    return _encode([_tool(name, *about) for name, about in TOOLS.items()])


def _tool(name: str, purpose: str, parameters: str) -> dict[str, object]:
    properties = dict[str, object]()
    for parameter in parameters.split():
        field, _, kind = parameter.partition(":")
        schema: dict[str, object] = {"type": kind or "string", "description": ABOUT.format(name=field)}
        if kind == "array":
            schema["items"] = {"type": "string"}
        properties[field] = schema
    required = [next(iter(properties))]
    schema = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    function = {"name": name, "description": f"{purpose}.{RULES}", "parameters": schema, "strict": False}
    return {"type": "function", "function": function}


def _call(id_: str, name: str, argument: str) -> dict[str, object]:
    parameter = TOOLS[name][1].split()[0].partition(":")[0]
    arguments = _encode({parameter: f"src/{argument}/{argument}.py"}).decode()
    return {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}


def _result(id_: str, content: str) -> dict[str, object]:
    return {"role": "tool", "tool_call_id": id_, "content": content}


def _encode(value: object) -> bytes:
    return msgspec.json.encode(value)
