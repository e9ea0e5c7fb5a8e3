"""Two models of known quality behind one loopback upstream, a suite that they can be asked, and the command."""

import json
import sqlite3
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from tests.cli.program import Done, run_here
from tests.loopback import ROLE, LoopbackUpstream, Request, Sse, Status, Step, chunk, said, usage_chunk, usage_of
from tests.trial_upstream import Provider

OLD, NEW = "acme/old", "acme/new"
CASES = 24
TAGS = ("facts", "json", "tools")
PROMPT_TOKENS, ANSWER_TOKENS = 40, 10


class Models(msgspec.Struct, frozen=True):
    """Answers each case with its own word, apart from the cases that a model fails; anything else like a provider."""

    fails: Mapping[str, Collection[int]]
    word: str = "right"
    broken: frozenset[int] = frozenset()  # cases that the new model answers with status 500
    answer_tokens: int = ANSWER_TOKENS
    busy: list[Status] = []  # answers to the first requests for cases
    fails_first: list[Status] = []  # answers to the first requests that check the wire
    provider: Provider = Provider()

    def steps(self, request: Request) -> Iterable[Step]:
        body = request.json if request.method == "POST" else {}
        asked = str(body["messages"][-1].get("content", "")) if body else ""
        if not asked.startswith("Case "):
            if self.fails_first:
                return self.fails_first.pop().steps(request)
            return self.provider.steps(request)
        if self.busy:
            return self.busy.pop().steps(request)
        number = int(asked.split()[1])
        if body["model"] == "new" and number in self.broken:
            return Status(500).steps(request)
        said_word = "wrong" if number in self.fails.get(body["model"], ()) else f"{self.word}-{number}"
        counted = usage_chunk(usage_of(PROMPT_TOKENS, self.answer_tokens))
        return Sse([ROLE, said(said_word), chunk(finish="stop"), counted]).steps(request)


def write_suite(folder: Path, cases: int = CASES, word: str = "right", max_tokens: int = 20) -> Path:
    path = folder / "suite.jsonl"
    rows = [
        {
            "id": f"case-{number}",
            "tags": [TAGS[number % len(TAGS)]],
            "messages": [
                {"role": "system", "content": "One word."},
                {"role": "user", "content": f"Case {number} : say {word}-{number}"},
            ],
            "graders": [{"kind": "exact", "texts": [f"{word}-{number}"]}],
            "max_tokens": max_tokens,
        }
        for number in range(1, cases + 1)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def configure(folder: Path, base_url: str, more: str = "", costs: tuple[str, str] | None = ("1.00", "2.00")) -> None:
    cost = f'cost_input = "{costs[0]}"\ncost_output = "{costs[1]}"\n' if costs else ""
    (folder / "cadenza.toml").write_text(
        f'[providers.acme]\nkind = "openai"\nbase_url = "{base_url}"\nretention = "zero"\n'
        f'[character]\ntext = "You are brief."\n'
        f'[[classes.forte.routes]]\nprovider = "acme"\nmodel = "old"\n{cost}'
        f'[[classes.forte.candidates]]\nprovider = "acme"\nmodel = "new"\n{cost}{more}'
    )


def prepare(folder: Path, upstream: LoopbackUpstream, models: Models, **suite: Any) -> Path:
    """A config whose two models are these, and the suite."""
    upstream.always(models)
    configure(folder, upstream.base_url)
    return write_suite(folder, **suite)


def evaluate(folder: Path, *options: str, code: int = 0) -> dict[str, Any]:
    """The verdict of the command, as JSON."""
    done = run_evaluate(folder, "--json", *options)
    assert done.returncode == code, done.stderr
    (found,) = json.loads(done.stdout)
    return dict(found)


def run_evaluate(folder: Path, *options: str) -> Done:
    given = ["--candidate", NEW, "--suite", "suite.jsonl", *options]
    return run_here(folder, "class", "evaluate", "forte", *given)


def asked_cases(upstream: LoopbackUpstream) -> list[tuple[str, int]]:
    """The model and the number of every case that was asked."""
    bodies = [request.json for request in upstream.requests if request.method == "POST"]
    texts = [(body["model"], str(body["messages"][-1]["content"])) for body in bodies]
    return [(model, int(text.split()[1])) for model, text in texts if text.startswith("Case ")]


def stored(folder: Path, query: str) -> list[tuple[Any, ...]]:
    with sqlite3.connect(folder / "data" / "cadenza.db") as database:
        found = database.execute(query).fetchall()
    database.close()
    return found
