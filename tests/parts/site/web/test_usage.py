"""The usage page, its report as JSON and its file for spreadsheets, over requests that were really served."""

import csv
import io
import re
from datetime import UTC, datetime, timedelta
from html import unescape
from typing import Any

import pytest

from tests.raw_client import RawClient
from tests.service import CREDIT_NANO, Service
from tests.visitor import Visitor, signed_in, until_refused

HOSTILE = '=HYPERLINK("https://evil.example","x")'
COUNTERS = ["requests", "prompt_tokens", "cached_tokens", "completion_tokens", "cost"]


def spend(service: Service, visitor: Visitor, name: str = "laptop", model: str = "forte") -> None:
    """Serve one request with a new key of this name."""
    secret = visitor.api("POST", "/keys", {"name": name}).json["secret"]
    assert RawClient(service.port, secret).chat(model=model).status == 200


def report(visitor: Visitor, group_by: str = "day") -> dict[str, Any]:
    found: dict[str, Any] = visitor.api("GET", f"/usage?group_by={group_by}").json
    return found


def rows_of(visitor: Visitor, group_by: str) -> list[list[str]]:
    seen = visitor.get(f"/platform/api/usage.csv?group_by={group_by}")
    assert seen.headers["content-type"] == "text/csv; charset=utf-8"
    assert re.fullmatch(r'attachment; filename="cadenza-usage-[\w-]+\.csv"', seen.headers["content-disposition"])
    return list(csv.reader(io.StringIO(seen.text)))


def test_the_page_without_usage_says_so(visitor: Visitor) -> None:
    """There is no chart, but a sentence and what to do next."""
    seen = visitor.get("/usage")
    assert "Nothing was used in this time" in seen.words
    assert 'class="chart"' not in seen.text
    assert "no date" in seen.words


@pytest.mark.usefixtures("far_from_midnight")
def test_a_request_moves_the_page(service: Service, visitor: Visitor) -> None:
    """The next look at the page has the request: in the totals, by day, by class, by key, and in the pace."""
    spend(service, visitor)
    totals = report(visitor)["totals"]
    seen = visitor.get("/usage")
    assert "Cost <$0.0001 of your credit" in seen.words
    assert f'title="${totals["cost"]}"' in seen.text
    assert f"forte ${totals['cost']}" in unescape(seen.text)  # of the bar
    day = f"{datetime.now(UTC).date()} ${totals['cost']} 1 "
    for expected in ("Requests 1 ", "By class", "By key", "laptop", day):
        assert expected in seen.words
    assert re.search(r"Pace <?\$0\.0\d+ a day, over the last day ", seen.words)
    assert re.search(r"Credit lasts until \d+ \w+ 20\d\d at this pace|10 years and more", seen.words)


def test_a_client_that_forgot_the_version_is_told_so(stranger: Visitor) -> None:
    """A request with a key for /usage is meant for /v1/usage: it gets the error object, not a page."""
    for headers in ({"authorization": "Bearer x"}, {"x-api-key": "x"}):
        seen = stranger.get("/usage", headers)
        assert (seen.status, "/v1" in seen.json["error"]["message"]) == (404, True)


@pytest.mark.usefixtures("far_from_midnight")
@pytest.mark.parametrize(("chosen", "days"), [("7", 7), ("30", 30), ("90", 90), ("month", None), ("1000000", 30)])
def test_every_day_of_the_range_has_a_bar(service: Service, visitor: Visitor, chosen: str, days: int | None) -> None:
    """Days without requests are there too, as bars of zero; an unknown range is the usual one."""
    spend(service, visitor)
    text = visitor.get(f"/usage?range={chosen}&show=nothing").text
    assert text.count('<g class="bar-of-day">') == (days or datetime.now(UTC).day)
    assert text.count('<rect class="zero"') == text.count('<g class="bar-of-day">') - 1


def test_any_range_of_a_year_can_be_chosen(visitor: Visitor) -> None:
    """Last month, and dates of which both days are shown; a longer range, or one that is none, is refused."""
    first = datetime.now(UTC).replace(day=1)
    assert f"to {(first - timedelta(days=1)).day} " in visitor.get("/usage?range=last-month").words
    words = visitor.get("/usage?from=2026-02-01&to=2026-02-28").words
    assert "1 Feb 2026 to 28 Feb 2026. Days begin at midnight UTC." in words
    assert visitor.get("/usage?from=2026-02-01&to=2026-02-28").text.count('value="2026-02-28"') == 1
    for query in ("from=2024-01-01&to=2025-12-31", "from=2026-02-02&to=2026-02-01", "month=x"):
        assert visitor.get(f"/usage?{query}").status == 400


def test_classes_differ_by_more_than_colour(service: Service, visitor: Visitor) -> None:
    """Each class has its own hatching in the chart, and its name in the legend."""
    for model in ("mezzo", "forte", "fortissimo"):
        spend(service, visitor, model=model)
    seen = visitor.get("/usage?show=requests")
    for number in (1, 2, 3):
        assert f'id="s{number}"' in seen.text
        assert f'fill="url(#s{number})"' in seen.text
    assert "mezzo forte fortissimo" in seen.words
    assert "style=" not in seen.text


def test_the_report_is_that_of_the_api(service: Service, visitor: Visitor) -> None:
    """The endpoint of the platform gives the same reply as GET /v1/usage does."""
    secret = visitor.api("POST", "/keys", {"name": "laptop"}).json["secret"]
    client = RawClient(service.port, secret)
    client.chat()
    for group_by in ("day", "model", "key"):
        query = f"/usage?start=2026-01-01&end=2100-01-01&group_by={group_by}"
        assert visitor.api("GET", query).json == client.get(f"/v1{query}").json


@pytest.mark.usefixtures("far_from_midnight")
def test_the_file_has_the_same_numbers(service: Service, visitor: Visitor) -> None:
    """A row for each day, class or key, and exact costs."""
    spend(service, visitor)
    found = report(visitor, "model")["data"][0]
    assert rows_of(visitor, "model") == [["model", *COUNTERS], ["forte", *(str(found[name]) for name in COUNTERS)]]
    assert rows_of(visitor, "day")[1][0] == str(datetime.now(UTC).date())
    head, row = rows_of(visitor, "key")
    assert (head[:3], row[1], row[-1]) == (["key", "name", "prefix"], "laptop", found["cost"])


def test_hostile_names_are_text(service: Service, visitor: Visitor) -> None:
    """The name of a key is neither markup on the page nor a formula in a spreadsheet."""
    spend(service, visitor, name=HOSTILE)
    spend(service, visitor, name="<script>alert(1)</script>")
    assert {row[1] for row in rows_of(visitor, "key")[1:]} == {f"'{HOSTILE}", "<script>alert(1)</script>"}
    seen = visitor.get("/usage")
    assert "<script>alert" not in seen.text
    assert HOSTILE in unescape(seen.text)


@pytest.mark.parametrize(
    "query", ["start=yesterday", "start=2026-02-02&end=2026-01-01", "group_by=account", "end=%00", "start=9999-01-01"]
)
def test_a_bad_query_is_explained(visitor: Visitor, query: str) -> None:
    """The report and the file answer 400 with the name of the field."""
    for path in ("/usage", "/usage.csv"):
        seen = visitor.api("GET", f"{path}?{query}")
        assert seen.status == 400
        assert seen.json["error"]["message"].startswith(query.partition("=")[0])


def test_usage_is_the_accounts_own(service: Service, visitor: Visitor) -> None:
    """A neighbour sees nothing of it, whatever the query names."""
    spend(service, visitor)
    neighbour = signed_in(service, service.create_account(CREDIT_NANO))
    key_id = report(visitor, "key")["data"][0]["key"]
    assert neighbour.api("GET", f"/usage?group_by=key&key={key_id}&account_id=x").json["data"] == []


def test_reports_are_limited_in_number(service: Service, email: str) -> None:
    """An account that asks for report after report gets 429, because each one reads many rows."""
    visitor = Visitor(service.port, {"x-forwarded-for": "203.0.113.16"})  # a network of its own
    visitor.sign_in(email)
    replies = until_refused(lambda: visitor.api("GET", "/usage"))
    assert {seen.status for seen in replies} == {200, 429}


def test_activity_has_each_request(service: Service, visitor: Visitor) -> None:
    """The page, the endpoint and both files have the same requests, and a filter leaves out the others."""
    spend(service, visitor, HOSTILE)
    spend(service, visitor, "phone", "mezzo")
    newest, oldest = visitor.api("GET", "/activity").json["data"]
    assert [newest["model"], oldest["model"]] == ["mezzo", "forte"]
    seen = visitor.get("/usage/activity")
    assert f"complete 11 (3) 7 {newest['duration_ms'] / 1000:.2f} s ${newest['cost'][:8]}" in seen.words
    rows = list(csv.DictReader(io.StringIO(visitor.get("/usage/activity.csv").text)))
    assert [row["id"] for row in rows] == [newest["id"], oldest["id"]]
    assert visitor.get("/usage/activity.json?model=forte").json["data"] == [oldest]
    assert "No such requests" in visitor.get("/usage/activity?status=failed").words
    assert visitor.get("/usage/activity?cursor=x").status == 400
