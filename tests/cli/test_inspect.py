"""A task of Inspect as a suite: real endpoints and loopback upstreams, and a stand-in for the program of Inspect."""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cadenza.cli.evaluation_run import evaluate_with_inspect
from cadenza.config import Settings, load_settings
from cadenza.core.classes import ClassVersion
from cadenza.evaluation.inspect_tasks import (
    InspectEndpoint,
    InspectFailed,
    InspectOrder,
    InspectResult,
    build_command,
    child_environment,
    content_folder,
    find_program,
    read_log,
)
from cadenza.evaluation.verdict import Verdict
from tests.cli.program import PROGRAM
from tests.environment import environment
from tests.loopback import Good, LoopbackUpstream, Sse, Status, Wait
from tests.processes import children, command_of, is_alive
from tests.service import wait_until
from tests.service_config import CHARACTER, RouteSpec, ServiceSpec

SECRET = "zyxel-forty-two"
CASES = [[f"s{number}", f"{SECRET} {number}?", "Paris"] for number in range(4)]
COSTS = 'cost_input = "1.00"\ncost_output = "2.00"\n'
runs_inspect = pytest.mark.slow(reason="starts a program for each side of a comparison")


@pytest.fixture
def upstreams() -> Iterator[tuple[LoopbackUpstream, LoopbackUpstream]]:
    with LoopbackUpstream() as incumbent, LoopbackUpstream() as candidate:
        incumbent.always(Good("Paris"))
        candidate.always(Good("London"))
        yield incumbent, candidate


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary folders are made."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def order(folder: Path, **task: Any) -> InspectOrder:
    file, program = folder / "task.json", folder / "inspect"
    file.write_text(json.dumps({"samples": CASES, "scorer": "match", "dies": False} | task))
    script = Path(__file__).with_name("inspect_stand_in.py")
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {script} "$@"\n')
    program.chmod(0o700)
    return InspectOrder(task=str(file), program=str(program), epochs=2)


def configured(folder: Path, upstreams: tuple[LoopbackUpstream, LoopbackUpstream], more: str = COSTS) -> Settings:
    spec = ServiceSpec(
        {"one": upstreams[0].base_url, "two": upstreams[1].base_url},
        {"forte": [RouteSpec("one", more_toml=more)], "fortissimo": [RouteSpec("two", more_toml=more)]},
    )
    folder.joinpath("cadenza.toml").write_text(spec.toml())
    return load_settings(str(folder / "cadenza.toml"), os.environ, folder)


def evaluate(settings: Settings, asked: InspectOrder, budget_nano: int = 10**12) -> tuple[InspectResult, Verdict]:
    one = settings.classes["forte"]
    version = ClassVersion(class_id="forte", number=1, routes=one.routes, character=one.character)
    candidate = settings.classes["fortissimo"].routes[0]
    return asyncio.run(evaluate_with_inspect(settings, version, candidate, asked, budget_nano))


@runs_inspect
def test_task(tmp_path: Path, temporary: Path, upstreams: tuple[LoopbackUpstream, LoopbackUpstream]) -> None:
    """Both sides answer every sample with the class's character; scores, tokens and costs are compared in pairs."""
    found, verdict = evaluate(configured(tmp_path, upstreams), order(tmp_path))
    assert (found.name, len(found.cases), len(found.scores)) == ("capitals", 4, 16)
    assert (verdict.losses, verdict.wins, verdict.is_complete) == (4, 0, True)
    assert (verdict.incumbent.score, verdict.candidate.score) == (1.0, 0.0)
    assert verdict.spent_nano == sum(one.cost_nano or 0 for one in found.scores) > 0
    for upstream in upstreams:
        sent = upstream.requests[0].json["messages"]
        assert [message["role"] for message in sent] == ["system", "user"]
        assert sent[0]["content"].startswith(CHARACTER)
    assert list(temporary.iterdir()) == [], "all that has content is deleted"
    assert SECRET not in repr((found, verdict))


@pytest.mark.skipif(sys.platform != "linux", reason="a child that ends with its parent")
@runs_inspect
def test_killed_command(tmp_path: Path, temporary: Path, upstreams: tuple[LoopbackUpstream, LoopbackUpstream]) -> None:
    """Kill -9 ends Inspect too. The next command deletes what both left behind, and nothing that is in use."""
    upstreams[0].always(Sse([Wait()]))
    settings, asked = configured(tmp_path, upstreams), order(tmp_path)
    given = ["--candidate", "two/loopback-large", "--inspect", asked.task, "--inspect-program", str(asked.program)]
    process = subprocess.Popen(
        [PROGRAM, "classes", "evaluate", "forte", *given],
        cwd=tmp_path,
        env=environment(TMPDIR=str(temporary)),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    upstreams[0].wait_for_request()
    inspects = [child for child in children(process.pid) if b"--log-dir" in command_of(child)]
    assert inspects
    process.kill()
    process.wait(60)
    wait_until(lambda: not any(map(is_alive, inspects)), "the end of Inspect")
    [left] = temporary.iterdir()
    assert SECRET in left.joinpath("incumbent", "trace").read_text()
    os.utime(left, (0, 0))
    upstreams[0].always(Good("Paris"))
    with content_folder() as used:
        os.utime(used, (0, 0))
        assert not left.exists()
        evaluate(settings, asked)
        assert list(temporary.iterdir()) == [used]


@runs_inspect
def test_faults_and_budget(
    tmp_path: Path, temporary: Path, upstreams: tuple[LoopbackUpstream, LoopbackUpstream]
) -> None:
    """A sample that fails has a score of 0; one that the budget does not pay for does not count at all."""
    upstreams[1].always(Status(500))
    settings = configured(tmp_path, upstreams)
    _, failed = evaluate(settings, order(tmp_path))
    assert (failed.candidate.score, failed.candidate.faults) == (0.0, 8)
    with pytest.raises(ValueError, match="no case was answered by both sides"):
        evaluate(settings, order(tmp_path), budget_nano=1)
    assert list(temporary.iterdir()) == []


@runs_inspect
@pytest.mark.parametrize(
    ("task", "message"),
    [
        ({"dies": True}, "exit code 1. Its last lines:\nthe task cannot be loaded"),
        ({"scorer": "other"}, "The scorer other gives values that are not from 0 to 1"),
    ],
)
def test_task_that_cannot_be_compared(
    tmp_path: Path,
    temporary: Path,
    upstreams: tuple[LoopbackUpstream, LoopbackUpstream],
    task: dict[str, Any],
    message: str,
) -> None:
    """A task that does not run, or whose scores are of another kind, is an error with its reason."""
    with pytest.raises(InspectFailed, match=message):
        evaluate(configured(tmp_path, upstreams), order(tmp_path, **task))
    assert list(temporary.iterdir()) == []


def test_missing_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Inspect, the error says how to install it in an environment of its own."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InspectFailed, match="Install Inspect into an environment of its own"):
        find_program(None)
    with pytest.raises(InspectFailed, match="There is no program nowhere"):
        find_program("nowhere")


def test_child_gets_little(tmp_path: Path) -> None:
    """The child's environment has its endpoint and no key of a provider; its home is the folder that is deleted."""
    endpoint = InspectEndpoint(side="candidate", base_url="http://here", token="mine", model="mezzo", cost=None)
    given = {"PATH": "/bin", "OPENAI_API_KEY": "sk-secret", "CADENZA_API_KEY": "other", "HOME": "/home/me"}
    found = child_environment(given, endpoint, tmp_path)
    assert "sk-secret" not in found.values()
    assert {"PATH": "/bin", "HOME": str(tmp_path), "CADENZA_API_KEY": "mine"}.items() <= found.items()
    limited = build_command("inspect", InspectOrder(task="a/b", limit=3), "mezzo", tmp_path)
    assert limited[:3] == ["inspect", "eval", "a/b"]
    assert limited[-2:] == ["--limit", "3"]


@pytest.mark.parametrize(
    ("logs", "message"),
    [
        ([], "wrote 0 logs"),
        (["{}", "{}"], "wrote 2 logs"),
        (["[1"], "cannot be read"),
        (['{"status": "error", "eval": {"task": "x"}}'], "its status is 'error'"),
    ],
)
def test_logs_that_are_refused(tmp_path: Path, logs: list[str], message: str) -> None:
    """A log that is missing, broken, ambiguous or not of a finished task is an error."""
    for number, text in enumerate(logs):
        tmp_path.joinpath(f"{number}.json").write_text(text)
    with pytest.raises(InspectFailed, match=message):
        read_log(tmp_path)
