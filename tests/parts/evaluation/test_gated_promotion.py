"""Evaluate, then promote: candidates of known quality on a loopback upstream, and the gate of the class."""

import json
from collections.abc import Iterable, Iterator

import msgspec
import pytest
from click.testing import CliRunner, Result

from cadenza.cli import app
from tests.loopback import Good, LoopbackUpstream
from tests.loopback.replies import Request, Step
from tests.parts.site.web.operators import make_operator
from tests.service import CREDIT_NANO, Service
from tests.service_config import RouteSpec, ServiceSpec
from tests.visitor import signed_in

CASES = 12
TAGS = ("sums", "words")


class ByQuality(msgspec.Struct, frozen=True):
    """Answers a case as well as its model does: it knows the answers to the tags in its name."""

    def steps(self, request: Request) -> Iterable[Step]:
        asked = request.json["messages"][-1]["content"]
        knows = isinstance(asked, str) and any(tag in asked for tag in request.json["model"].split("-"))
        return Good("The answer is right." if knows else "No idea.").steps(request)


@pytest.fixture(scope="module")
def quality() -> Iterator[LoopbackUpstream]:
    with LoopbackUpstream() as running:
        running.always(ByQuality())
        yield running


@pytest.fixture(scope="module")
def service(quality: LoopbackUpstream) -> Iterator[Service]:
    """Forte is adopted and served by a model that knows sums only; its gate wants every sum right."""
    more = '[classes.forte.gate]\nsuite = "suite.jsonl"\nmax_losses = 0\nmust_pass = ["sums"]\n'
    made = Service(ServiceSpec({"acme": quality.base_url}, {"forte": [RouteSpec("acme", "old-sums")]}, more))
    suite = made.config.parent / "suite.jsonl"
    lines = [
        {
            "id": f"{tag}-{number}",
            "tags": [tag],
            "messages": [{"role": "user", "content": f"One of the {tag}, number {number}"}],
            "graders": [{"kind": "contains", "texts": ["right"]}],
        }
        for tag in TAGS
        for number in range(CASES)
    ]
    suite.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with made as running:
        assert classes(running, "adopt", "forte").exit_code == 0
        yield running


def classes(service: Service, *words: str) -> Result:
    return CliRunner().invoke(app, ["class", *words, "--config", str(service.config)])


def try_candidate(service: Service, model: str) -> Result:
    """Evaluate the candidate, then promote it."""
    suite = service.config.parent / "suite.jsonl"
    options = ["--candidate", f"acme/{model}", "--suite", str(suite), "--runs", "1", "--budget", "20"]
    evaluated = classes(service, "evaluate", "forte", *options)
    assert "wire conformance" in evaluated.output, evaluated.output
    return classes(service, "promote", "forte", "--candidate", f"acme/{model}")


def test_a_worse_candidate_is_refused(service: Service) -> None:
    """A candidate that knows nothing loses every sum: both limits say by how much, and nothing changes."""
    refused = try_candidate(service, "new-nothing")
    assert refused.exit_code == 1
    assert f"it loses {CASES} cases, and 0 are allowed: {CASES} too many." in str(refused.exception)
    assert f"of {CASES} cases with the tag 'sums' that the incumbent passes, it fails {CASES}." in str(
        refused.exception
    )


def test_a_better_candidate_is_promoted(service: Service) -> None:
    """A candidate that knows both is better and passes the gate; the version names its verdict."""
    assert try_candidate(service, "new-sums-words").exit_code == 0
    [shown] = json.loads(classes(service, "show", "forte", "--json").stdout)
    assert [route["model"] for route in shown["version"]["routes"]] == ["new-sums-words"]
    assert shown["version"]["verdict_id"] == shown["verdict"]["id"]
    assert shown["verdict"]["result"]["decision"] == "better"


def test_operators_see_the_verdicts(service: Service) -> None:
    """The page of the class and the API have the newest verdict, with its numbers; an unknown class has no list."""
    try_candidate(service, "new-nothing")
    email = service.create_account(CREDIT_NANO)
    make_operator(service, email)
    operator = signed_in(service, email)
    words = operator.get("/operator/classes/forte").words
    assert ("acme/new-nothing" in words, "worse" in words) == (True, True)
    newest = operator.api("GET", "/operator/classes/forte/verdicts").json["data"][0]
    assert (newest["candidate"], newest["state"], newest["created_at"][-1]) == ("acme/new-nothing", "finished", "Z")
    assert (newest["result"]["decision"], newest["result"]["losses"] >= CASES) == ("worse", True)
    assert operator.api("GET", "/operator/classes/fort/verdicts").status == 404
