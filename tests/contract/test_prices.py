"""Prices that count from a date on: shown before, charged by the moment of the hold, the same in three processes.

Each test changes the price of another class, because a price that counts stays.
"""

import contextlib
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import openai
import pytest
from click.testing import CliRunner

from cadenza.cli import app
from cadenza.core.records import Cap
from tests.account import Account, run_command
from tests.loopback import ROLE, STOP, Good, LoopbackUpstream, Pause, Sse, said, usage_chunk
from tests.raw_client import RawClient, read_all, read_until
from tests.schemas import MODEL_LIST, check
from tests.service import Service, wait_until
from tests.service_config import classes_spec
from tests.visitor import Visitor

pytestmark = pytest.mark.parts(reason="the site shows the prices")

LEAD_S = 3.0  # from the command to the change: time for three streams to begin
FORTE_NANO, NEW_FORTE_NANO = 11 * 1_070 + 7 * 3_450, 11 * 1_200 + 7 * 3_600  # what USAGE costs
UNUSED = "a price of the config is not used"


@pytest.fixture(scope="module")
def service(shared_upstream: LoopbackUpstream) -> Iterator[Service]:
    """Three processes on one store."""
    with Service(classes_spec(shared_upstream.base_url)) as running:
        running.start_many(2)
        yield running


def soon(lead_s: float) -> str:
    """A date at least this far ahead, in whole seconds."""
    return datetime.fromtimestamp(int(time.time() + lead_s) + 1, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def apis(account: Account) -> list[RawClient]:
    """One for each process."""
    key = account.create_key()
    return [RawClient(process.port, key) for process in account.service.processes]


def model(api: RawClient, class_id: str) -> dict[str, Any]:
    found: dict[str, Any] = api.get(f"/v1/models/{class_id}").json
    return found


def wait_for_price(api: RawClient, class_id: str, input_: str) -> None:
    wait_until(lambda: bool(model(api, class_id)["pricing"]["input"] == input_), "the change of price")


def test_a_stream_over_the_change_costs_the_price_of_its_hold(
    account: Account, service: Service, upstream: LoopbackUpstream
) -> None:
    """Held before and settled after: the old price, in every process. The next request costs the new one."""
    pauses = [Pause() for _ in service.processes]
    upstream.script(*(Sse([ROLE, said("half"), pause, said(" done"), STOP, usage_chunk()]) for pause in pauses))
    clients = apis(account)
    date = soon(LEAD_S)
    run_command(service, "class", "price", "forte", "--input", "1.20", "--output", "3.60", "--from", date)
    coming = {"from": date, "input": "1.20", "output": "3.60", "cached_input": None}
    with contextlib.ExitStack() as streams:
        opened = [streams.enter_context(api.open_chat(stream=True)) for api in clients]
        for connection in opened:
            read_until(connection, b'"half"')
        for api in clients:
            shown = model(api, "forte")
            assert (shown["pricing"]["input"], shown["pricing_changes"]) == ("1.07", [coming])
        for api in clients:
            wait_for_price(api, "forte", "1.20")
        for pause in pauses:
            pause.release()
        assert all(b"[DONE]" in read_all(connection) for connection in opened)
    upstream.always(Good())
    assert {api.chat().status for api in clients} == {200}
    costs = [-charge["amount_nano"] for charge in account.charges]
    assert sorted(costs) == [FORTE_NANO] * 3 + [NEW_FORTE_NANO] * 3
    account.wait_until_ended()
    run_command(service, "ledger", "check")


def test_the_store_wins_over_the_config(account: Account, service: Service, upstream: LoopbackUpstream) -> None:
    """An edit of the config counts at once until a change begins; after that it is not used, and the log says so."""
    date = soon(lead_s=1)
    key = service.create_key(account.email, cap=Cap(limit_nano=10**9, period="total"))
    capped = RawClient(service.port, key)
    run_command(service, "class", "price", "fortissimo", "--input", "4", "--output", "20", "--from", date)
    wait_for_price(capped, "fortissimo", "4.00")
    assert capped.chat(model="fortissimo").status == 200
    assert account.charge()["amount_nano"] == -(11 * 4_000 + 7 * 20_000)
    assert UNUSED not in service.output
    prices = '[prices.fortissimo]\ninput = "1"\noutput = "1"\n[prices.mezzo]\ninput = "0.30"\n'
    service.config.write_text(service.spec.toml() + prices)
    run_command(service, "class", "reload")
    assert model(capped, "fortissimo")["pricing"]["input"] == "4.00"
    assert model(capped, "mezzo")["pricing"]["input"] == "0.30"
    wait_until(lambda: UNUSED in service.output, "the warning")
    doctor = CliRunner().invoke(app, ["doctor", "--config", str(service.config)])
    assert "[prices.fortissimo] in the config is not used" in doctor.stdout
    service.config.write_text(service.spec.toml())
    run_command(service, "class", "reload")


def test_a_change_is_shown_beforehand(account: Account, service: Service) -> None:
    """The pages, the status and the list of models have it with its date. After it is cancelled none has it."""
    given = ("--input", "0.12", "--output", "0.25", "--cached-input", "0.03", "--from", "2031-12-01")
    run_command(service, "class", "price", "mezzo", *given)
    coming = {"from": "2031-12-01T00:00:00Z", "input": "0.12", "output": "0.25", "cached_input": "0.03"}
    sentence = "mezzo from 1 December 2031 (UTC): 0.12 input / 0.25 output / 0.03 cached input"
    stranger, api = Visitor(service.port), apis(account)[0]
    listed = api.get("/v1/models").json
    check(listed, MODEL_LIST)
    assert model(api, "mezzo")["pricing_changes"] == [coming]
    assert "pricing" not in model(api, "auto")
    wait_until(lambda: sentence in stranger.get("/").words, "the page of a process that serves no request")
    assert sentence in stranger.get("/docs").words
    [status] = [one for one in stranger.api("GET", "/status").json["classes"] if one["id"] == "mezzo"]
    assert status["price_changes"] == [coming]
    with openai.OpenAI(api_key=api.key, base_url=f"http://127.0.0.1:{service.port}/v1") as client:
        assert client.models.retrieve("mezzo").model_dump()["pricing_changes"] == [coming]
    run_command(service, "class", "price", "mezzo", "--cancel", "2031-12-01")
    assert model(api, "mezzo")["pricing_changes"] == []
    wait_until(lambda: sentence not in stranger.get("/docs").words, "the page without it")


def test_a_swap_leaves_prices_as_they_are(account: Account, service: Service, upstream: LoopbackUpstream) -> None:
    """After a promotion another model answers; the price, the changes to come and the charge are those of before."""
    given = ("--input", "0.12", "--output", "0.25", "--cached-input", "none", "--from", "2031-12-02")
    run_command(service, "class", "price", "mezzo", *given)
    before = model(account.api, "mezzo")
    run_command(service, "class", "adopt", "mezzo")
    run_command(service, "class", "promote", "mezzo", "--candidate", "loopback/other", "--force", "--reason", "a test")
    assert account.api.chat(model="mezzo").status == 200
    assert upstream.requests[-1].json["model"] == "other"
    assert model(account.api, "mezzo") == before
    assert account.charge()["amount_nano"] == -(8 * 100 + 3 * 20 + 7 * 210)
    run_command(service, "class", "rollback", "mezzo")
    assert model(account.api, "mezzo") == before
    run_command(service, "class", "price", "mezzo", "--cancel", "2031-12-02")


def test_a_change_reaches_a_service_whose_config_is_broken(account: Account, service: Service) -> None:
    """Its processes keep their last good config, and know of the change and of its withdrawal all the same."""
    good = service.config.with_name("good.toml")
    good.write_text(service.spec.toml())
    service.config.write_text("[limits]\nburst = 0\n")
    try:
        for change, dates in (
            (("--input", "4.50", "--output", "21", "--from", "2031-12-03"), ["2031-12-03T00:00:00Z"]),
            (("--cancel", "2031-12-03"), []),
        ):
            done = CliRunner().invoke(app, ["class", "price", "fortissimo", *change, "--config", str(good)])
            assert done.exit_code == 0, done.output
            for api in apis(account):
                assert [one["from"] for one in model(api, "fortissimo")["pricing_changes"]] == dates
    finally:
        service.config.write_text(service.spec.toml())
        service.reload()
