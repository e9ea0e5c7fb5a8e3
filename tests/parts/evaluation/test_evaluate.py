"""cadenza class evaluate: the real command against loopback models of known quality."""

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.program import PROGRAM
from tests.environment import environment
from tests.forked import start_program
from tests.hostile.started import core_limits
from tests.loopback import LoopbackUpstream, Pause, Request, Status, Step
from tests.parts.evaluation.evaluated import (
    CASES,
    NEW,
    Models,
    asked_cases,
    configure,
    evaluate,
    prepare,
    run_evaluate,
    stored,
    write_suite,
)
from tests.service import refusing_address
from tests.trial_upstream import Provider

MARK = "zugzwang-content-77"


@pytest.mark.parametrize(
    ("old", "new", "decision"),
    [
        (range(1, 13), (), "better"),
        ((), range(1, 13), "worse"),
        ((3, 4), (3, 4), "tie"),
        ((1, 2, 3), (4, 5), "undecided"),
    ],
)
def test_decision(
    tmp_path: Path, upstream: LoopbackUpstream, old: tuple[int, ...], new: tuple[int, ...], decision: str
) -> None:
    """A better candidate wins, a worse one loses, equal ones tie, and a few cases on either side decide nothing."""
    prepare(tmp_path, upstream, Models({"old": old, "new": new}))
    verdict = evaluate(tmp_path, "--runs", "1")["verdict"]
    assert (verdict["decision"], verdict["losses"]) == (decision, len(set(new) - set(old)))
    assert (verdict["cases_needed"] is None) == (decision != "undecided")
    assert verdict["candidate"]["cost_nano"] == 40 * 1000 + 10 * 2000
    assert verdict["candidate"]["tokens"] == 10
    assert {check["state"] for check in verdict["candidate"]["conformance"]} <= {"ok", "warning"}


def test_impossible_counts(tmp_path: Path, upstream: LoopbackUpstream) -> None:
    """An upstream that claims more tokens than the store has room for ends the budget, and nothing else."""
    prepare(tmp_path, upstream, Models({}, answer_tokens=2**39))
    evaluate(tmp_path, "--runs", "1", code=2)
    assert stored(tmp_path, "SELECT max(completion_tokens) FROM verdict_scores") == [(2**31 - 1,)]


def test_output(tmp_path: Path, upstream: LoopbackUpstream) -> None:
    """The verdict is a sentence, tables and missing settings; progress and what is not known are on standard error."""
    refusing = Provider(refuses=lambda body: "seed" in body)
    upstream.always(Models({"old": range(1, 13)}, provider=refusing))
    configure(tmp_path, upstream.base_url, '[classes.forte.gate]\nsuite = "suite.jsonl"\n', costs=None)
    write_suite(tmp_path)
    done = run_evaluate(tmp_path, "--runs", "1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{NEW} is better: its score is 0.500 higher")
    assert "not known" in done.stdout
    assert f'\n{NEW}: sampling: seed is refused; set in the route: omit = ["seed"]\n' in done.stdout
    assert f"cadenza class promote forte --candidate {NEW}" in done.stdout
    assert "set cost_input and cost_output" in done.stderr.lower()
    assert "24/24 pairs" in done.stderr


def test_the_ask_is_composed_like_the_gateways(tmp_path: Path, upstream: LoopbackUpstream) -> None:
    """A case is sent with the character and its own instructions as one system message, streamed, at temperature 0."""
    prepare(tmp_path, upstream, Models({}), cases=1)
    evaluate(tmp_path, "--runs", "1")
    asked = [request.json for request in upstream.requests if b"Case 1" in request.body]
    assert [body["model"] for body in asked] in (["old", "new"], ["new", "old"])
    for body in asked:
        assert body["messages"][0] == {"role": "system", "content": "You are brief.\n\nOne word."}
        assert (body["stream"], body["temperature"], body["max_tokens"]) == (True, 0, 20)


def test_faults_are_scores_of_zero(tmp_path: Path, upstream: LoopbackUpstream) -> None:
    """An upstream fault is counted and is a loss, and is not asked again."""
    prepare(tmp_path, upstream, Models({}, broken=frozenset({2, 5})))
    verdict = evaluate(tmp_path, "--runs", "1")["verdict"]
    assert (verdict["candidate"]["faults"], verdict["losses"]) == (2, 2)
    assert asked_cases(upstream).count(("new", 2)) == 1


def test_the_budget_is_not_passed(tmp_path: Path, upstream: LoopbackUpstream) -> None:
    """The run stops before the budget is passed, says so, and goes on with a larger one without asking again."""
    upstream.always(Models({}, answer_tokens=400))
    configure(tmp_path, upstream.base_url, costs=("100.00", "200.00"))
    write_suite(tmp_path, max_tokens=500)
    first = evaluate(tmp_path, "--runs", "1", "--budget", "2.80", code=2)
    assert (first["state"], first["verdict"]["is_complete"]) == ("stopped", False)
    assert 0 < first["verdict"]["cases"] < CASES
    assert first["verdict"]["spent_nano"] <= 2_800_000_000
    assert any("stopped" in one for one in first["shortfalls"])
    second = evaluate(tmp_path, "--runs", "1", "--budget", "9.00")
    assert (second["id"], second["state"], second["verdict"]["cases"]) == (first["id"], "finished", CASES)
    assert sorted(asked_cases(upstream)) == sorted((model, n) for model in ("old", "new") for n in range(1, CASES + 1))


@pytest.mark.slow(reason="interrupts a long run of the command")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_run_goes_on(tmp_path: Path, upstream: LoopbackUpstream, number: signal.Signals) -> None:
    """After Ctrl-C and kill -9 the same command asks only what is not recorded, and reaches the same verdict."""
    hold = Pause()
    failed = {"old": range(1, 10), "new": (1,)}
    prepare(tmp_path, upstream, Models(failed))
    whole = evaluate(tmp_path, "--runs", "1")["verdict"]
    upstream.reset()
    upstream.always(_Holding(Models(failed), 13, hold))
    given = ["class", "evaluate", "forte", "--candidate", NEW, "--suite", "suite.jsonl", "--runs", "1", "--restart"]
    printed, command = tmp_path / "printed", [str(PROGRAM), *given, "--concurrency", "1"]
    with printed.open("wb") as out:
        process = start_program(command, tmp_path, environment(), out)
    hold.wait_until_reached()
    assert sys.platform != "linux" or core_limits(process.pid) == ("0", "0"), "its memory has messages and keys"
    os.kill(process.pid, number)
    code = process.wait(60)
    if number == signal.SIGINT:
        assert code == 130
        assert "Repeat the same command to resume" in printed.read_text()
    rows = stored(tmp_path, "SELECT count(*) FROM verdict_scores GROUP BY verdict_id ORDER BY 1")
    assert rows == [(24,), (48,)]  # of 12 cases, and of the first evaluation
    upstream.reset()
    upstream.always(Models(failed))
    again = evaluate(tmp_path, "--runs", "1")["verdict"]
    assert {case for _, case in asked_cases(upstream)} == set(range(13, CASES + 1))
    times = {"first_p50_ms", "first_p95_ms", "whole_p50_ms", "whole_p95_ms"}
    for side in ("incumbent", "candidate"):
        assert {k: v for k, v in again[side].items() if k not in times} == {
            k: v for k, v in whole[side].items() if k not in times
        }
    assert [again[name] for name in ("decision", "wins", "losses", "interval", "by_tag")] == [
        whole[name] for name in ("decision", "wins", "losses", "interval", "by_tag")
    ]


class _Holding:
    """Answers until the first request for a case, which it holds."""

    def __init__(self, models: Models, case: int, hold: Pause) -> None:
        self._models = models
        self._case = f"Case {case} ".encode()
        self._hold = hold

    def steps(self, request: Request) -> Iterator[Step]:
        if self._case in request.body:
            yield self._hold
        yield from self._models.steps(request)


def test_no_content_is_written(tmp_path: Path, upstream: LoopbackUpstream) -> None:
    """Texts of the suite and of answers are written nowhere."""
    suite = prepare(tmp_path, upstream, Models({"new": range(1, 9)}, word=MARK), word=MARK)
    done = run_evaluate(tmp_path, "--runs", "1")
    assert done.returncode == 0, done.stderr
    holding = {path.name for path in tmp_path.rglob("*") if path.is_file() and MARK.encode() in path.read_bytes()}
    assert holding == {suite.name}
    assert MARK not in done.stdout + done.stderr
    assert "case-1" not in json.dumps(stored(tmp_path, "SELECT result FROM verdicts"))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--candidate", "nobody/x"), "no provider is named 'nobody'"),
        (("--budget", "free"), "--budget: 'free' is not an amount"),
        (("--budget", "0.0000001"), "raise --budget"),
        (("--suite", "missing.jsonl"), "missing.jsonl: cannot be read"),
    ],
)
def test_mistakes(tmp_path: Path, upstream: LoopbackUpstream, options: tuple[str, str], said: str) -> None:
    """A mistake on the command line is one clear sentence, and no case is asked."""
    prepare(tmp_path, upstream, Models({}), cases=2)
    done = run_evaluate(tmp_path, "--runs", "1", *options)
    assert done.returncode == 1
    assert said in done.stderr
    assert asked_cases(upstream) == []


def test_a_candidate_that_does_not_answer(tmp_path: Path, upstream: LoopbackUpstream) -> None:
    """If a side refuses a plain request, no case is asked, and the command says which side it is."""
    upstream.always(Models({}))
    write_suite(tmp_path, 2)
    with refusing_address() as address:
        dead = f'[providers.dead]\nkind = "openai"\nbase_url = "{address}"\nretention = "zero"\n'
        configure(tmp_path, upstream.base_url, dead)
        done = run_evaluate(tmp_path, "--candidate", "dead/x")
    assert done.returncode == 1
    assert "The candidate, dead/x, does not answer" in done.stderr
    assert asked_cases(upstream) == []


@pytest.mark.parametrize(("failures", "code"), [(1, 0), (2, 0), (20, 1)])
def test_a_first_request_that_fails(tmp_path: Path, upstream: LoopbackUpstream, failures: int, code: int) -> None:
    """One 500 at the first request is repeated and counted; only an upstream that goes on failing ends it."""
    prepare(tmp_path, upstream, Models({}, fails_first=[Status(500)] * failures), cases=2)
    done = run_evaluate(tmp_path, "--json", "--runs", "1")
    assert done.returncode == code, done.stderr
    if code:
        assert "does not answer a plain request" in done.stderr
    else:
        [found] = json.loads(done.stdout)
        sides = [found["verdict"][side] for side in ("incumbent", "candidate")]
        assert (sum(side["repeated"] for side in sides), sum(side["faults"] for side in sides)) == (failures, 0)


def test_a_busy_upstream_is_asked_again(tmp_path: Path, upstream: LoopbackUpstream) -> None:
    """A 429 is not a fault of the model: the case is asked again. A finished evaluation is not gone on with."""
    prepare(tmp_path, upstream, Models({}, busy=[Status(429, headers={"retry-after": "1"})]), cases=2)
    first = evaluate(tmp_path, "--runs", "1")
    verdict = first["verdict"]
    assert (verdict["incumbent"]["faults"], verdict["candidate"]["faults"], verdict["ties"]) == (0, 0, 2)
    assert len(asked_cases(upstream)) == 5
    assert stored(tmp_path, "SELECT count(*) > 0 FROM upstream_attempts") == [(1,)], "providers bill them"
    assert evaluate(tmp_path, "--runs", "1")["id"] != first["id"]
