"""The watch against a real upstream that changes its answers silently: noticed, by one process, without content."""

import contextlib
import itertools
import json
import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.program import run_here
from tests.loopback import Good, LoopbackUpstream, Wait, Whole
from tests.service import Deployment, ServiceProcess, wait_until
from tests.service_config import RouteSpec, ServiceSpec

QUESTION, ANSWER, OTHER = "zephyr-question-17", "zephyr-answer-18", "zephyr-other-19"
CASES = 14
EVERY_S = 4.0
DRIFT = 2


@pytest.fixture
def deployment(upstream: LoopbackUpstream) -> Iterator[Deployment]:
    """A class with a suite of cheap cases, which are watched every few seconds."""
    more = f'[classes.forte.gate]\nsuite = "suite.jsonl"\n[classes.forte.watch]\nevery_hours = {EVERY_S / 3600}\n'
    route = RouteSpec("loopback", more_toml='cost_input = "0.01"\ncost_output = "0.01"\n')
    spec = ServiceSpec({"loopback": upstream.base_url}, {"forte": [route]}, more)
    cases = [
        {
            "id": f"case-{number}",
            "tags": ["general"],
            "messages": [{"role": "user", "content": f"{QUESTION} {number}"}],
            "graders": [{"kind": "contains", "texts": [ANSWER]}],
            "max_tokens": 64,
            "is_cheap": True,
        }
        for number in range(CASES)
    ]
    with Deployment(spec) as deployed:
        deployed.folder.joinpath("suite.jsonl").write_text("\n".join(map(json.dumps, cases)))
        upstream.always(Good(ANSWER))
        yield deployed


def rows(deployment: Deployment) -> list[tuple[str, str, int]]:
    """State, kind of reference and begin of each watch, oldest first."""
    query = "SELECT state, candidate, created_at FROM verdicts WHERE kind = 'watch' ORDER BY created_at"
    with contextlib.closing(sqlite3.connect(deployment.store, timeout=60)) as store:
        return store.execute(query).fetchall()


def shows(process: ServiceProcess, drift: int) -> bool:
    return f'cadenza_watch_drift{{class_id="forte",measure="score"}} {drift}.0\n' in process.get("/metrics")[1]


def assert_no_content(deployment: Deployment) -> None:
    for path in Path(deployment.folder).rglob("*"):
        if path.is_file() and path.name != "suite.jsonl":
            data = path.read_bytes()
            assert not any(word.encode() in data for word in (QUESTION, ANSWER, OTHER)), path


def test_by_hand(deployment: Deployment, upstream: LoopbackUpstream) -> None:
    """The command says that nothing has drifted, then what has; it is in the history; the change can be accepted."""

    def watch(*more: str) -> tuple[int, str]:
        done = run_here(deployment.folder, "class", "watch", "forte", *more)
        return done.returncode, done.stdout + done.stderr

    code, said = watch()
    assert (code, "score 1.000, 14 of 14 passed" in said, "are compared with this one" in said) == (0, True, True), said
    code, said = watch()
    assert (code, "No sign of drift. The score against the reference: 1.000 -> 1.000; of 14 cases 0 are" in said) == (
        0,
        True,
    ), said
    upstream.always(Good(OTHER))
    code, said = watch()
    assert code == DRIFT
    assert "drift of score: 1.000 -> 0.000; of 14 cases 14 are worse" in said
    history = run_here(deployment.folder, "class", "history", "forte")
    assert re.search(r"command line +class\.drift +score: 1\.000 -> 0\.000", history.stdout), history.stdout
    assert watch("--new-reference")[0] == 0
    assert watch()[0] == 0
    assert run_here(deployment.folder, "class", "watch", "nowhere").returncode == 1
    assert_no_content(deployment)


@pytest.mark.slow(reason="waits for a schedule")
def test_on_schedule(deployment: Deployment, upstream: LoopbackUpstream) -> None:
    """Of two processes one runs each watch; both show the drift; a killed one leaves a watch that the next ends."""
    first, second = deployment.start_many(2)
    wait_until(lambda: shows(first, 0) and shows(second, 0), "the reference")
    upstream.always(Good(OTHER))
    wait_until(lambda: shows(first, 1) and shows(second, 1), "the drift being shown by both")
    wait_until(lambda: any('"a model drifts"' in one.output for one in (first, second)), "the warning in the log")
    begun = [at for _, _, at in rows(deployment)]
    assert min(after - before for before, after in itertools.pairwise(begun)) >= EVERY_S * 1000

    upstream.reset()
    upstream.always(Whole([ANSWER, " "], None, Wait()))
    upstream.wait_for_request()
    wait_until(lambda: rows(deployment)[-1][0] == "running", "a watch being under way")
    killed = len(rows(deployment))
    first.kill()
    second.kill()
    upstream.reset()
    upstream.always(Good(ANSWER))
    third = deployment.start()
    wait_until(lambda: rows(deployment)[-1][0] == "finished" and len(rows(deployment)) > killed, "the next watch")
    assert rows(deployment)[killed - 1][0] == "stopped"
    third.stop()
    assert_no_content(deployment)
