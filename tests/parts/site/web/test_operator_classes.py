"""The operator's page of a class, and its endpoints: what they show, and a rollback."""

import json
from collections.abc import Iterator

import pytest
from click.testing import CliRunner

from cadenza.cli import app
from tests.account import run_command
from tests.loopback import LoopbackUpstream
from tests.parts.site.web.operators import make_operator
from tests.service import CREDIT_NANO, Service
from tests.service_config import RouteSpec, ServiceSpec
from tests.visitor import Visitor, signed_in

PAGE = "/operator/classes/forte"


@pytest.fixture(scope="module")
def running(shared_upstream: LoopbackUpstream) -> Iterator[Service]:
    """A service with an adopted class at version 2, <b>bold</b> in its history."""
    routes = {"forte": [RouteSpec("acme", "one")], "mezzo": [RouteSpec("acme", "small")]}
    with Service(ServiceSpec({"acme": shared_upstream.base_url}, routes)) as service:
        change(service, "adopt", "forte")
        promote(service, "two", "<b>bold</b>")
        yield service


@pytest.fixture
def operator(running: Service) -> Visitor:
    email = running.create_account(CREDIT_NANO)
    make_operator(running, email)
    visitor = signed_in(running, email)
    visitor.get(PAGE)
    return visitor


def change(service: Service, *words: str) -> str:
    done = CliRunner().invoke(app, ["class", *words, "--config", str(service.config)])
    assert done.exit_code == 0, done.output
    return done.output


def promote(service: Service, model: str, reason: str) -> str:
    words = ["--candidate", f"acme/{model}", "--force", "--reason", reason]
    return change(service, "promote", "forte", *words)


def test_the_page_shows_what_is_served(operator: Visitor) -> None:
    """Version, routes, differences and history; text of operators is escaped."""
    seen = operator.get(PAGE)
    assert seen.status == 200
    for words in ("Version 2 is served", "acme/two", "Compare versions", "class.promote", "class.adopt"):
        assert words in seen.words
    assert "<b>bold" not in seen.text
    assert "/operator/classes/forte" in operator.get("/operator/classes").text
    assert "Version 1 is served" in operator.get("/operator/classes/mezzo").words
    assert "The config pins" in operator.get("/operator/classes/mezzo").words
    assert "has no version 7" in operator.get(f"{PAGE}?before=7").words


def test_unknown_classes_are_not_found(operator: Visitor) -> None:
    """A class that does not exist, or has no version, is 404."""
    for class_id in ("fort", "fortissimo", "%00"):
        assert operator.get(f"/operator/classes/{class_id}").status == 404
        assert operator.api("GET", f"/operator/classes/{class_id}").status == 404
    assert operator.api("POST", "/operator/classes/fort/rollback", {"version": 1}).status == 404


def test_a_rollback_by_the_form(running: Service, operator: Visitor) -> None:
    """It serves the version from before, with the reason in the history; a form that is out of date changes nothing."""
    promote(running, "three", "a trial")
    served = operator.api("GET", PAGE).json["version"]["number"]
    stale = operator.post(f"{PAGE}/rollback", {"version": "2", "to": "1"})
    assert (stale.status, "has changed meanwhile" in stale.words) == (400, True)
    form = {"version": str(served), "to": "2", "reason": "too slow"}
    assert operator.post(f"{PAGE}/rollback", form).location == f"{PAGE}?note=class-rolled-back"
    found = operator.api("GET", PAGE).json
    assert (found["version"]["number"], found["history"][0]["event"]) == (2, "class.rollback")
    assert found["history"][0]["detail"].endswith("instead of 3: too slow")
    seen = operator.get(PAGE).text
    assert (f'<option value="{served}"' in seen, '<option value="1"' in seen) == (True, True)


def test_a_rollback_by_the_endpoint(running: Service, operator: Visitor) -> None:
    """It serves the version that is named; a pinned class is refused with its line."""
    served = operator.api("GET", PAGE).json["version"]["number"]
    reply = operator.api("POST", f"{PAGE}/rollback", {"version": served, "to": 1, "reason": "why"})
    assert (reply.status, reply.json["version"]["number"], reply.json["previous"]) == (200, 1, served)
    compared = operator.api("GET", f"{PAGE}/diff?before=1&after=2").json
    assert [one["change"] for one in compared["routes"]] == ["removed", "added"]
    refused = operator.api("POST", "/operator/classes/mezzo/rollback", {"version": 1})
    assert (refused.status, "cadenza class adopt mezzo" in refused.json["error"]["message"]) == (400, True)
    change(running, "rollback", "forte", "--to", "2")


def test_a_route_rests_by_a_button(running: Service, operator: Visitor) -> None:
    """It rests for the time that was chosen; the pages say until when and by whom, and another button ends it."""
    page, button = "/operator/classes", "/operator/routes/rest"
    assert operator.post(button, {"route": "acme/small", "time": "1h"}).location == f"{page}?note=route-rests"
    [found] = [one for one in operator.api("GET", "/operator/load").json["models"] if one["model"] == "small"]
    [event] = running.ledger.query("SELECT actor, subject FROM audit_events WHERE event = 'route.rest'")
    email = found["rest"]["by"]
    assert (found["state"], event["actor"], event["subject"]) == ("resting", email, "acme/small")
    [listed] = [one for one in json.loads(run_command(running, "route", "list", "--json")) if one["by"]]
    assert (listed["route"], listed["rests_until"], listed["by"]) == ("acme/small", found["rest"]["until"], email)
    [mezzo] = [one for one in operator.api("GET", "/operator/load").json["classes"] if one["id"] == "mezzo"]
    assert mezzo["state"] == "resting"
    words = operator.get(f"{page}?note=route-rests").words
    assert f"acme/small gets no further requests until {found['rest']['until']}" in words
    for path in (page, "/operator"):
        assert f"until {found['rest']['until']} (by hand: {email})" in operator.get(path).words
    refused = operator.post(button, {"route": "acme/tiny", "time": "10m"})
    assert (refused.status, "The routes are" in refused.words) == (400, True)
    assert operator.post("/operator/routes/resume", {"route": "acme/small"}).location == f"{page}?note=route-resumed"
    assert "by hand" not in operator.get("/operator").words
