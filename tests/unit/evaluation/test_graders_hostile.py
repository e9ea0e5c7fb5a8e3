"""Hostile patterns, schemas and answers: they fail their case within seconds, and nothing else happens."""

import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from cadenza.children.confine import ChildLimits
from cadenza.evaluation.graders import Grade, GradedReply, Graders, GradingLimits, grade
from cadenza.evaluation.suite import Case, CodeCheck, Contains, Grader, JsonIs, Pattern, RunsCode, read_suite

ADDS = RunsCode(function="add", checks=(CodeCheck(args=(2, 3), equals=5), CodeCheck(args=(-1, 1), equals=0)))

DEEP = (
    '{"id": "a", "tags": ["x"], "messages": [{"role": "user", "content": "?"}], "graders": [{"kind": "json", "equals": '
    + "[" * 900
    + "]" * 900
    + "}]}"
)

pytestmark = pytest.mark.slow(reason="code runs up to its limits, in a child process for each case")


@pytest_asyncio.fixture
async def graders() -> AsyncIterator[Graders]:
    async with Graders(GradingLimits(code=ChildLimits(cpu_s=0, memory_bytes=512 * 1024**2))) as started:
        yield started


async def grade_one(graders: Graders, grader: Grader, text: str) -> Grade:
    case = Case(id="a", tags=("x",), messages=[{"role": "user", "content": "?"}], graders=(grader,))
    return await grade(case, GradedReply(text), graders)


async def test_a_catastrophic_pattern_fails_its_case_within_its_limit(graders: Graders) -> None:
    """A pattern that backtracks for ever costs its CPU limit, and the next case is graded."""
    began_s = time.monotonic()
    result = await grade_one(graders, Pattern(pattern=r"(a+)+$"), "a" * 60 + "b")
    assert result.score == 0
    assert "too much time" in result.reason
    assert time.monotonic() - began_s < 20
    assert (await grade_one(graders, Pattern(pattern=r"^a"), "abc")).score == 1


async def test_a_catastrophic_pattern_of_a_schema_fails_its_case(graders: Graders) -> None:
    """A pattern inside of a schema has the same limits."""
    schema = {"type": "string", "pattern": r"^(\w+\s?)+$"}
    assert (await grade_one(graders, JsonIs(schema=schema), '"' + "a" * 40 + '!"')).score == 0


async def test_right_code_passes_and_wrong_code_does_not(graders: Graders) -> None:
    """Code in a fenced block is run, and its values are compared."""
    right = "Here:\n```python\ndef add(a, b):\n    return a + b\n```\nDone."
    assert await grade_one(graders, ADDS, right) == Grade(1.0)
    wrong = await grade_one(graders, ADDS, right.replace("+", "-"))
    assert wrong == Grade(0.0, "check 1: returns '-1'")


# Code, and what must be in the reason for which it fails.
HOSTILE = {
    "loop": ("while True: pass", "time"),
    "ignored signal": ("import signal\nsignal.signal(24, signal.SIG_IGN)\nwhile True: pass", "time"),
    "memory": ("x = []\nwhile True: x.append(bytearray(10**7))", "MemoryError"),
    "raised limit": (
        "import resource\nresource.setrlimit(resource.RLIMIT_AS, (2**40, 2**40))\nadd = lambda a, b: a + b",
        "raises",
    ),
    "output": ("while True: print('x' * 1000)", "OutputTooLong"),
    "exit": ("import os\nos._exit(0)", "ends the process"),
    "system exit": ("raise SystemExit", "SystemExit"),
    "stack": ("def f(): f()\nf()", "RecursionError"),
    "huge value": ("def add(a, b): return 'x' * 10**7", "too long"),
    "always equal": (
        "class E(int):\n    def __eq__(self, o): return True\ndef add(a, b): return E(99)",
        "returns '99'",
    ),
    "nested value": (
        "def add(a, b):\n    x = []\n    for _ in range(10**5): x = [x]\n    return x",
        "RecursionError",
    ),
    "syntax": ("def add(a, b) return", "SyntaxError"),
    "absent": ("x = 1", "KeyError"),
    "package": ("import numpy\ndef add(a, b): return a + b", "raises"),
    "forged reply": (
        "import os, struct\nos.write(0, struct.pack('<BI', 0, 4) + b'\\xde\\xad\\xbe\\xef')",
        "in place of its process",
    ),
    "flood of reports": (
        "import os, struct\nreports = struct.pack('<BI', 1, 1) * 10**4\nwhile True: os.write(0, reports)",
        "ends the process",
    ),
    "endless reply": ("import os, struct\nos.write(0, struct.pack('<BI', 0, 2**31))", "ends the process"),
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_hostile_code_fails_its_case_and_nothing_else(graders: Graders, name: str) -> None:
    """Code that loops, hoards, exits or answers for its process scores 0, and the next code is run as usual."""
    code, reason = HOSTILE[name]
    result = await grade_one(graders, ADDS, code)
    assert result.score == 0
    assert reason in result.reason
    assert (await grade_one(graders, ADDS, "def add(a, b): return a + b")).score == 1


ESCAPES = {
    "file": "open({path!r}, 'w').write('x')",
    "read": "open('/etc/hostname').read()",
    "program": "import os\nos.system('touch ' + {path!r})",
    "fork": "import os\nos.fork()",
    "socket": "import _socket\n_socket.socket()",
    "ctypes": "import ctypes\nlibc = ctypes.CDLL(None)\nassert libc.open({path!r}.encode(), 65, 420) >= 0",
    "kill": "import os\nos.kill(os.getppid(), 0)",
}


@pytest.mark.parametrize("name", ESCAPES)
async def test_code_reaches_nothing_outside(graders: Graders, name: str, tmp_path: Path) -> None:
    """Files, programs, processes, sockets and signals are refused by the system."""
    path = tmp_path / "escaped"
    code = ESCAPES[name].format(path=str(path)) + "\ndef add(a, b): return a + b"
    if name != "program":  # os.system returns a status instead of raising
        assert (await grade_one(graders, ADDS, code)).score == 0
    else:
        await grade_one(graders, ADDS, code)
    assert not path.exists()


async def test_code_cannot_read_what_is_expected(graders: Graders) -> None:
    """The expected values are not in the memory of the child: a search of all its objects finds only the arguments."""
    secret = 918273645
    grader = RunsCode(function="find", checks=(CodeCheck(args=(7,), equals=secret),))
    code = (
        "import sys, gc\n"
        "def find(given):\n"
        "    ints = {v for o in gc.get_objects() if isinstance(o, (list, tuple)) for v in o if isinstance(v, int)}\n"
        f"    return {secret} if ({secret - 1} + 1) in ints - {{{secret}}} else 0\n"
    )
    assert (await grade_one(graders, grader, code)).score == 0


ANSWERS_OF_ANY_LENGTH: dict[str, tuple[Grader, str]] = {
    "fence": (JsonIs(equals=1), "```" + "a" * 2_000 + "\n" * 100_000),
    "code": (ADDS, "```" + " " * 2_000 + "\n" * 100_000),
    "marks": (Contains(texts=("b",)), "a" + "\u0301" * 50_000 + "\u0323" * 50_000),
}


@pytest.mark.parametrize("name", ANSWERS_OF_ANY_LENGTH)
async def test_an_answer_is_searched_in_linear_time(graders: Graders, name: str) -> None:
    """A fence without an end and a heap of combining marks are graded at once: the service's own loop does it."""
    grader, text = ANSWERS_OF_ANY_LENGTH[name]
    began_s = time.process_time()
    assert (await grade_one(graders, grader, text)).score == 0
    assert time.process_time() - began_s < 5


async def test_values_that_cannot_be_compared_fail_their_case(graders: Graders) -> None:
    """An integer beyond every float, and lists as deep as the suite's own, score 0 and end nothing."""
    assert (await grade_one(graders, JsonIs(equals=1.5), "9" * 400)).score == 0
    deep = read_suite("s", DEEP.encode()).cases[0]
    assert "too deeply" in (await grade(deep, GradedReply("[" * 900 + "]" * 900), graders)).reason


async def test_code_that_sleeps_is_ended_by_the_clock() -> None:
    """Sleep uses no CPU time; the clock ends it."""
    async with Graders(GradingLimits(clock_s=1.0)) as graders:
        result = await grade_one(graders, ADDS, "import time\ntime.sleep(600)")
    assert result == Grade(0.0, "the code does not end in time, or ends the process")
