"""GET /v1/usage: the account's own counters in the documented shape, equal to its ledger to the nano-dollar."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from urllib.parse import quote

import pytest

from cadenza.core.money import format_dollars, parse_dollars
from tests.account import Account, open_account, run_command
from tests.loopback import LoopbackUpstream, Status
from tests.raw_client import RawClient
from tests.service import Service

COUNTERS = {"requests": int, "prompt_tokens": int, "cached_tokens": int, "completion_tokens": int, "cost": str}
MODELS = ("mezzo", "forte", "fortissimo", "forte")
COST_NANO = 2_330 + 35_920 + 158_700 + 35_920


@pytest.fixture
def used(account: Account, upstream: LoopbackUpstream) -> Account:
    """An account that has used every class, two keys, and had one failed request."""
    for model in MODELS[:-1]:
        assert account.api.chat(model=model).status == 200
    assert RawClient(account.service.port, account.create_key()).chat(model=MODELS[-1], stream=True).status == 200
    upstream.always(Status(500))
    account.api.chat().error(502, "api_error")
    return account


def usage(account: Account, **query: str) -> Any:
    reply = account.api.get("/v1/usage?" + "&".join(f"{name}={quote(value)}" for name, value in query.items()))
    assert reply.status == 200, reply.body
    assert reply.headers["content-type"] == "application/json"
    return reply.json


def test_report_has_the_documented_shape(used: Account) -> None:
    """The report has exactly the documented members with their types."""
    report = usage(used)
    assert set(report) == {"object", "start", "end", "balance", "currency", "totals", "data"}
    assert (report["object"], report["currency"]) == ("usage", "USD")
    assert (type(report["start"]), type(report["end"]), type(report["balance"])) == (int, int, str)
    assert {name: type(value) for name, value in report["totals"].items()} == COUNTERS
    assert report["data"]
    for day in report["data"]:  # two, around midnight
        assert {name: type(value) for name, value in day.items()} == {"day": str, **COUNTERS}


@pytest.mark.parametrize("group_by", ["day", "model", "key"])
def test_groups_totals_ledger_and_balance_agree(used: Account, group_by: str) -> None:
    """In every grouping the groups sum to the totals, which equal the ledger's charges; the balance is the rest."""
    report = usage(used, group_by=group_by)
    totals = report["totals"]
    for name in ("requests", "prompt_tokens", "cached_tokens", "completion_tokens"):
        assert sum(group[name] for group in report["data"]) == totals[name]
    assert sum(parse_dollars(group["cost"]) for group in report["data"]) == parse_dollars(totals["cost"]) == COST_NANO
    charges = used.charges
    assert -sum(charge["amount_nano"] for charge in charges) == COST_NANO
    assert sum(charge["completion_tokens"] for charge in charges) == totals["completion_tokens"] == 4 * 7
    assert (totals["prompt_tokens"], totals["cached_tokens"]) == (4 * 11, 4 * 3)
    assert report["balance"] == format_dollars(used.credit_nano - COST_NANO) == format_dollars(used.balance_nano)


def test_failed_request_is_counted_and_free(used: Account) -> None:
    """A failed request is among the requests, with no tokens and no cost."""
    by_model = {group["model"]: group for group in usage(used, group_by="model")["data"]}
    assert {model: group["requests"] for model, group in by_model.items()} == {"mezzo": 1, "forte": 3, "fortissimo": 1}
    assert by_model["forte"]["completion_tokens"] == 2 * 7
    assert by_model["mezzo"]["cost"] == "0.00000233"


def test_groups_by_key_use_the_key_id(used: Account) -> None:
    """The ids are those that `key list` shows; the key itself is not shown."""
    groups = usage(used, group_by="key")["data"]
    listed = run_command(used.service, "key", "list", "--account", used.email, "--json")
    assert sorted(group["requests"] for group in groups) == [1, 4]
    assert all(f'"{group["key"]}"' in listed for group in groups)


def test_times_have_several_formats(used: Account) -> None:
    """The same span in Unix seconds, in UTC, with an offset and without one gives the same report."""
    end = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
    start = end - timedelta(hours=2)
    east = timezone(timedelta(hours=5, minutes=30))
    spans = [
        (str(int(start.timestamp())), str(int(end.timestamp()))),
        (f"{start:%Y-%m-%dT%H:%M:%SZ}", f"{end:%Y-%m-%dT%H:%M:%SZ}"),
        (start.astimezone(east).isoformat(), end.astimezone(east).isoformat()),
        (f"{start:%Y-%m-%dT%H:%M:%S}", str(int(end.timestamp()))),
    ]
    reports = [usage(used, start=first, end=last) for first, last in spans]
    assert reports == [reports[0]] * len(spans)
    assert (reports[0]["start"], reports[0]["end"]) == (int(start.timestamp()), int(end.timestamp()))
    assert reports[0]["totals"]["requests"] == 5


def test_account_sees_only_its_own_usage(service: Service, used: Account) -> None:
    """Another account has no usage."""
    with open_account(service) as other:
        report = usage(other)
        assert (report["totals"]["requests"], report["data"], report["balance"]) == (0, [], "5.00")


def test_requests_one_by_one(used: Account) -> None:
    """Each has its time, key, class, tokens, status, latency and cost, newest first; pages join by their cursor."""
    whole = usage(used, group="request")
    assert set(whole) == {"object", "start", "end", "balance", "currency", "data", "next"}
    page = usage(used, group_by="request", limit="2")
    found = list[dict[str, Any]](page["data"])
    while page["next"]:
        page = usage(used, group_by="request", limit="2", cursor=page["next"])
        found += page["data"]
    assert found == whole["data"]
    assert [(row["model"], row["status"]) for row in found] == [("forte", 502), *((one, 200) for one in MODELS[::-1])]
    assert sum(parse_dollars(row["cost"]) for row in found) == COST_NANO
    assert {"key", "created", "duration_ms", "first_byte_ms", "prompt_tokens", "completion_tokens"} < set(found[0])


def test_requests_are_filtered(used: Account) -> None:
    """By class, by status and by key; a mistake is named."""
    assert [row["model"] for row in usage(used, group_by="request", model="mezzo")["data"]] == ["mezzo"]
    [failed] = usage(used, group_by="request", status="failed")["data"]
    assert failed["status"] == 502
    assert len(usage(used, group_by="request", key=failed["key"])["data"]) == 4
    for query in ("status=good", "limit=0", "cursor=x", "status=2000"):
        name = query.partition("=")[0]
        assert used.api.get(f"/v1/usage?group_by=request&{query}").error(400).startswith(f"{name}: ")
