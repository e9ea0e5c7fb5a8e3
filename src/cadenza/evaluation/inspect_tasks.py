"""Runs a task of Inspect (`inspect-ai`) as a suite: its own program in its own process, once for each side.

Inspect asks the endpoints that it is given, scores the samples itself and writes a log. The log has content, so it is
written into a folder that the caller deletes; only scores, counts and times are read from it. The child's environment
has the address and the token of its endpoint and no other secret, and its home is that folder too: Inspect keeps
traces and buffers there.
"""

import asyncio
import fcntl
import hashlib
import os
import re
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from cadenza.core.content import Content
from cadenza.core.errors import ControlError
from cadenza.core.money import Price
from cadenza.core.records import Usage
from cadenza.evaluation.verdict import CaseFacts
from cadenza.process import end_with_parent
from cadenza.store.tables.verdicts import SIDES, AnswerScore, Side

SERVICE = "cadenza"  # Inspect reads CADENZA_BASE_URL and CADENZA_API_KEY for models named openai-api/cadenza/…
FOLDER, LOCK = "cadenza-inspect-", "lock"
NEW_S = 60.0  # a folder this new may not be locked yet
LOG_BYTES_MAX = 1024 * 1024 * 1024
END_S = 10.0  # how long an interrupted run may take to remove its sandboxes
RETRIES = 1  # of one request
SHOWN_LINES = 8
KEPT_VARIABLES = ("PATH", "LANG", "LC_ALL", "TZ", "SSL_CERT_FILE", "HF_HOME", "HF_HUB_OFFLINE", "DOCKER_HOST")
LETTERS = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0, "yes": 1.0, "true": 1.0, "no": 0.0, "false": 0.0}
OUT_OF_CREDIT = re.compile(r"\b402\b")
INSTALL = (
    "Install Inspect into an environment of its own, then name its program: "
    "python3 -m venv inspect && inspect/bin/pip install inspect-ai openai, and --inspect-program inspect/bin/inspect."
)


class InspectFailed(ControlError):
    """Inspect is missing, or did not run the task, or gave scores that cannot be compared."""


class InspectEndpoint(Content, msgspec.Struct, frozen=True, kw_only=True):
    """Where one side is asked, and what its tokens cost; None if that is not known."""

    side: Side
    base_url: str
    token: str
    model: str
    cost: Price | None


class InspectOrder(msgspec.Struct, frozen=True, kw_only=True):
    """What to run. `limit` is the number of samples, None for all."""

    task: str
    program: str | None = None  # None: found on PATH
    limit: int | None = None
    epochs: int = 1
    connections: int = 4


class InspectResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a task showed: its name, the digest of its samples, a case for each sample, and the scores of both sides."""

    name: str
    digest: bytes
    cases: list[CaseFacts]
    scores: list[AnswerScore]


class _TokenUsage(msgspec.Struct):
    input_tokens: int = 0
    output_tokens: int = 0
    input_tokens_cache_read: int | None = None


class _SampleScore(Content, msgspec.Struct):
    value: Any = None


class _SampleError(Content, msgspec.Struct):
    message: str = ""


class _Sample(Content, msgspec.Struct):
    id: int | str
    epoch: int = 1
    input: msgspec.Raw = msgspec.Raw()
    target: msgspec.Raw = msgspec.Raw()
    scores: dict[str, _SampleScore] | None = None
    model_usage: dict[str, _TokenUsage] = {}
    working_time: float | None = None
    error: _SampleError | None = None


class _Headline(msgspec.Struct):
    score: str = ""


class _Results(msgspec.Struct):
    headline: _Headline | None = None


class _Task(msgspec.Struct):
    task: str


class _TaskLog(msgspec.Struct):
    """The parts of Inspect's log that are read. Its other fields are skipped."""

    status: str
    eval: _Task
    results: _Results | None = None
    samples: list[_Sample] | None = None


def find_program(given: str | None) -> str:
    found = shutil.which(given or "inspect")
    if found is None:
        raise InspectFailed(f"There is no program {given or 'inspect on the PATH'}. {INSTALL}")
    return str(Path(found).absolute())


@contextmanager
def content_folder() -> Iterator[Path]:
    """A private folder, deleted at the end. Those that killed commands of this user left behind are deleted first."""
    for folder in Path(tempfile.gettempdir()).glob(f"{FOLDER}*"):
        if _is_left_behind(folder):
            shutil.rmtree(folder, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=FOLDER) as name, Path(name, LOCK).open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # until this process ends, by whatever
        yield Path(name)


def _is_left_behind(folder: Path) -> bool:
    try:
        if folder.lstat().st_uid != os.geteuid() or time.time() - folder.lstat().st_mtime < NEW_S:
            return False
        with Path(folder, LOCK).open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # it is in use, or is none of ours
        return False
    return True


async def run_inspect(order: InspectOrder, endpoints: Sequence[InspectEndpoint], folder: Path) -> InspectResult:
    """Run the task against both sides at once. `folder` will have content: the caller deletes it."""
    program = find_program(order.program)
    folders = {one.side: folder / one.side for one in endpoints}
    try:
        async with asyncio.TaskGroup() as group:
            for one in endpoints:
                folders[one.side].mkdir(mode=0o700)
                group.create_task(_run_side(program, order, one, folders[one.side]))
    except* InspectFailed as failed:
        raise failed.exceptions[0] from None
    logs = {one.side: await asyncio.to_thread(read_log, folders[one.side] / "logs") for one in endpoints}
    return compare_logs(logs, {one.side: one.cost for one in endpoints})


def build_command(program: str, order: InspectOrder, model: str, logs: Path) -> list[str]:
    file, at, name = order.task.partition("@")
    task = f"{Path(file).absolute()}{at}{name}" if Path(file).exists() else order.task  # else a name that Inspect knows
    options = {
        "--model": f"openai-api/{SERVICE}/{model}",
        "--log-dir": str(logs),
        "--log-format": "json",
        "--display": "none",
        "--epochs": str(order.epochs),
        "--max-connections": str(order.connections),
        "--max-retries": str(RETRIES),
    }
    if order.limit is not None:
        options["--limit"] = str(order.limit)
    pairs = [word for option in options.items() for word in option]
    return [program, "eval", task, "--no-fail-on-error", "--no-epochs-reducer", *pairs]


def child_environment(given: Mapping[str, str], endpoint: InspectEndpoint, folder: Path) -> dict[str, str]:
    return {
        **{name: given[name] for name in KEPT_VARIABLES if name in given},
        "HOME": str(folder),
        "TMPDIR": str(folder),
        "INSPECT_EVAL_CTL_SERVER": "false",
        "INSPECT_EVAL_NO_LOG_REALTIME": "true",
        f"{SERVICE.upper()}_BASE_URL": endpoint.base_url,
        f"{SERVICE.upper()}_API_KEY": endpoint.token,
    }


async def _run_side(program: str, order: InspectOrder, endpoint: InspectEndpoint, folder: Path) -> None:
    printed = folder / "printed"
    with printed.open("wb") as out:
        process = await asyncio.create_subprocess_exec(
            *build_command(program, order, endpoint.model, folder / "logs"),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env=child_environment(os.environ, endpoint, folder),
            cwd=folder,
            start_new_session=True,
            preexec_fn=end_with_parent,
        )
        try:
            code = await process.wait()
        finally:
            await _end(process)
    if code:
        lines = printed.read_text(errors="replace").strip().splitlines()[-SHOWN_LINES:]
        raise InspectFailed("\n".join([f"Inspect ended with exit code {code}. Its last lines:", *lines]))


async def _end(process: asyncio.subprocess.Process) -> None:
    """Interrupt a run that has not ended, as Ctrl-C does, and kill what is left of it."""
    with suppress(ProcessLookupError):  # nothing is left of it, even if its end is not known here yet
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGINT)
            with suppress(TimeoutError):
                async with asyncio.timeout(END_S):
                    await process.wait()
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()


def read_log(folder: Path) -> _TaskLog:
    found = sorted(folder.glob("*.json"))
    if len(found) != 1:
        raise InspectFailed(f"Inspect wrote {len(found)} logs, and one was expected: name one task, like FILE.py@TASK.")
    if found[0].stat().st_size > LOG_BYTES_MAX:
        raise InspectFailed("The log of Inspect is larger than 1 GiB. Run fewer samples with --limit.")
    try:
        log = msgspec.json.decode(found[0].read_bytes(), type=_TaskLog)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InspectFailed(f"The log of Inspect cannot be read: {type(error).__name__}.") from None
    if log.status != "success":
        raise InspectFailed(f"Inspect did not finish the task: its status is {log.status!r}.")
    return log


def compare_logs(logs: Mapping[Side, _TaskLog], costs: Mapping[Side, Price | None]) -> InspectResult:
    """A case for each sample that has an id on a side, numbered in the order of the incumbent's log."""
    every = [sample for side in SIDES for sample in logs[side].samples or ()]
    numbers = {key: number for number, key in enumerate(dict.fromkeys(str(sample.id) for sample in every), start=1)}
    hashed = hashlib.sha256()
    contents = {str(sample.id): (bytes(sample.input), bytes(sample.target)) for sample in every}
    hashed.update(msgspec.json.encode([(key, *map(bytes.hex, parts)) for key, parts in sorted(contents.items())]))
    scores = list[AnswerScore]()
    for side in SIDES:
        scorer = _scorer(logs[side])
        for sample in logs[side].samples or ():
            score = _read_score(sample, scorer)
            if score is not None:
                scores.append(_answer(sample, numbers[str(sample.id)], side, score, costs[side]))
    name = logs["incumbent"].eval.task
    return InspectResult(
        name=name.rpartition("/")[2],
        digest=hashed.digest(),
        cases=[CaseFacts(number, ()) for number in numbers.values()],
        scores=scores,
    )


def _scorer(log: _TaskLog) -> str:
    """The name of the score that counts: the task's headline, else the first of a sample."""
    if log.results and log.results.headline and log.results.headline.score:
        return log.results.headline.score
    return next((name for sample in log.samples or () for name in sample.scores or ()), "")


def _read_score(sample: _Sample, scorer: str) -> float | None:
    """From 0 to 1; 0 for a sample that failed; None for one that was not scored, or that the budget left out."""
    if sample.error:
        return None if OUT_OF_CREDIT.search(sample.error.message) else 0.0
    value = (sample.scores or {}).get(scorer, _SampleScore()).value
    if value is None:
        return None
    if isinstance(value, str):
        value = LETTERS.get(value, LETTERS.get(value.lower()))
    if not isinstance(value, int | float) or not 0 <= value <= 1:
        raise InspectFailed(f"The scorer {scorer} gives values that are not from 0 to 1, so they cannot be compared.")
    return float(value)


def _answer(sample: _Sample, number: int, side: Side, score: float, cost: Price | None) -> AnswerScore:
    used = sample.model_usage.values()
    fresh, cached = sum(one.input_tokens for one in used), sum(one.input_tokens_cache_read or 0 for one in used)
    usage = Usage(fresh + cached, sum(one.output_tokens for one in used), cached)
    return AnswerScore(
        case_number=number,
        run=sample.epoch,
        side=side,
        score=score,
        cost_nano=None if cost is None else cost.charge(usage),
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        duration_ms=None if sample.working_time is None else sample.working_time * 1000,
        fault="failed" if sample.error else "",
    )
