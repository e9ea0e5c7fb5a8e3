"""Bills of providers: their columns are read by any of their usual names, and differences are explained or not."""

import msgspec
import pytest

from cadenza.core.attempts import AttemptKey, AttemptSums
from cadenza.parts.books.bill_file import BillCounts, DayModel, match_models, read_bill
from cadenza.parts.books.bills import ModelCounts, Tolerance, add_up, compare

DAY, MODEL = "2026-10-01", "large"
PLACE = DayModel(DAY, MODEL)
NUMBER = 20_727  # of the day
CENT_NANO = 10_000_000
OURS = ModelCounts(requests=10, prompt_tokens=1000, completion_tokens=500, cost_nano=12_345_678)
DEAR = ModelCounts(requests=10, prompt_tokens=1000, completion_tokens=500, cost_nano=1000 * CENT_NANO)
OPENAI = (
    "start_time_iso,model,num_model_requests,input_tokens,output_tokens,input_cached_tokens\n"
    f"{DAY}T00:00:00+00:00,large-2026-05-01,10,1000,500,7\n"
)
ANTHROPIC = (
    "usage_date_utc,model_version,api_key,usage_input_tokens_no_cache,usage_input_tokens_cache_write_5m,"
    f"usage_input_tokens_cache_read,usage_output_tokens\n{DAY},large,a,600,100,100,300\n{DAY},large,b,200,0,0,200\n"
)
OPENROUTER = f'Date,Model,Usage,Requests,Prompt Tokens,Completion Tokens\n{DAY},LARGE,0.0123456789012,10,"1,000",500\n'
SEMICOLONS = f"Day;Model;Requests;Input tokens;Output tokens;Cost\n{DAY};large;10;1.000;500,0;0,012345678\n"
SECONDS = "start_time,model,requests,input_tokens,output_tokens\n1790812800,large,10,1000,500\n"


def result_of(billed: BillCounts, ours: ModelCounts = OURS, **kinds: AttemptSums) -> tuple[str, str]:
    attempts = {AttemptKey(NUMBER, "acme", MODEL, kind): sums for kind, sums in kinds.items()}
    [line] = compare({PLACE: ours}, attempts, {PLACE: billed})
    return line.result, "; ".join(line.reasons)


@pytest.mark.parametrize("text", [OPENAI, ANTHROPIC, OPENROUTER, SECONDS, SEMICOLONS])
def test_usual_exports_are_read(text: str) -> None:
    """The columns of each are found, lines of one day and model are added up, and a dated model is ours."""
    bill = match_models(read_bill(text.splitlines()), [MODEL])
    [line] = compare({PLACE: OURS}, {}, bill)
    assert (line.place, line.result) == (PLACE, "agrees")


def test_a_cost_is_cut_to_nano_dollars() -> None:
    """A bill may have more decimals than we count."""
    assert read_bill(OPENROUTER.splitlines())[DayModel(DAY, "LARGE")].cost_nano == 12_345_678


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("when,model,requests\n", "no column for the day"),
        ("day,requests\n", "no column for the model"),
        ("day,model,seats\n2026-10-01,m,1\n", "no counts"),
        ("day,model,requests\n", "no lines"),
        ("day,model,requests\n2026-13-01,m,1\n", "line 2 of the bill: .*not a day"),
        ("day,model,requests\nTotal,m,1\n", "line 2 of the bill: 'Total' is not a day.* Remove a line of sums"),
        ("day,model,requests,cost\n2026-10-01,m,1,\n", "line 2 of the bill: its cost is empty"),
        ("day,model,requests\n2026-10-01,m,many\n", "line 2 of the bill: .*not a number"),
        ("day;model;requests\n2026-10-01;m;1,5\n", "line 2 of the bill: '1.5' is not a whole number"),
        ("", "no column for the day"),
    ],
)
def test_a_bill_that_cannot_be_read_is_refused(text: str, message: str) -> None:
    """The message names the column or the line."""
    with pytest.raises(ValueError, match=message):
        read_bill(text.splitlines())


def test_what_is_not_of_clients_is_expected() -> None:
    """Trials and both parts of continued answers are in the bill, with their tokens."""
    trials, begun = AttemptSums(2, 50, 0), AttemptSums(1, 200, 30)
    result, reasons = result_of(BillCounts(13, 1250, 530), trial=trials, continued=begun)
    assert (result, reasons.split("; ")) == (
        "explained",
        [
            "trials by cadenza doctor: 2 (50 tokens in, 0 out)",
            "streams that another route continued: 1 (200 tokens in, 30 out)",
        ],
    )
    assert result_of(BillCounts(10, 1030, 470), continuation=AttemptSums(1, 30, -30))[0] == "explained"


def test_failed_attempts_may_be_billed_or_not() -> None:
    """As many requests more as failed are explained, with the tokens of as many average ones; more are not."""
    failed = AttemptSums(2)
    assert result_of(BillCounts(12, 1200, 510), timed_out=failed) == (
        "explained",
        "attempts that failed: 2 (2 timed_out)",
    )
    assert result_of(BillCounts(13, 1200, 510), timed_out=failed)[0] == "differs"
    assert result_of(BillCounts(12, 1300, 510), timed_out=failed)[0] == "differs"


def test_our_own_counts_may_differ_by_as_much_as_they_are() -> None:
    """A reply that broke off is counted here; its provider may count as much more as an average reply has."""
    broken = ModelCounts(requests=10, prompt_tokens=1000, completion_tokens=500, broken=1, estimated=1)
    assert result_of(BillCounts(10, 1000, 590), broken)[0] == "explained"
    assert result_of(BillCounts(10, 1000, 610), broken)[0] == "differs"
    assert result_of(BillCounts(10, 1000, 501)) == ("differs", "")


def test_a_day_that_one_side_lacks_differs() -> None:
    """Neither a bill without our requests nor requests without a bill agree."""
    other = DayModel("2026-10-02", MODEL)
    lines = compare({PLACE: OURS}, {}, {other: BillCounts(10, 1000, 500)})
    assert [(line.place, line.result) for line in lines] == [(PLACE, "differs"), (other, "differs")]


def billed(cents: float, ours: ModelCounts = DEAR, **kinds: AttemptSums) -> tuple[str, str]:
    """The same requests and tokens, for as many cents."""
    counts = BillCounts(ours.requests, ours.prompt_tokens, ours.completion_tokens, round(cents * CENT_NANO))
    return result_of(counts, ours, **kinds)


def test_money_is_judged_with_a_tolerance() -> None:
    """Of 10.00 dollars half a percent and a cent: 9.94 to 10.06. Beyond that the change of the price is named."""
    for cents in (994, 1000, 1006):
        assert billed(cents) == ("agrees", "")
    said = "than cost_input, cost_output and cost_cached of its routes say: its price has"
    assert billed(1100) == ("differs", f"the provider charges 10.0% more {said} risen, or they are wrong")
    assert billed(900) == ("differs", f"the provider charges 10.0% less {said} fallen, or they are wrong")
    [line] = compare({PLACE: DEAR}, {}, {PLACE: BillCounts(10, 1000, 500, 1100 * CENT_NANO)}, Tolerance(0.1, 0))
    assert line.result == "agrees"


def test_money_of_unknown_cost_is_not_judged() -> None:
    """Without the costs of a route, or a column of the bill, only tokens are compared; what is free must be free."""
    unknown = ModelCounts(requests=10, prompt_tokens=1000, completion_tokens=500, unknown_costs=1)
    assert billed(1000, unknown) == ("agrees", "")
    assert result_of(BillCounts(10, 1000, 500), DEAR) == ("agrees", "")
    free = ModelCounts(requests=10, prompt_tokens=1000, completion_tokens=500)
    assert billed(2, free) == ("differs", "0.02 dollars are billed for what costs nothing by the config")


def test_what_explains_tokens_explains_their_cost() -> None:
    """Trials cost their part of the tokens, and what is not sure as much as average requests; no more."""
    trials = AttemptSums(1, 100, 25)
    for cents, result in ((1000, "explained"), (1105, "explained"), (1150, "differs")):
        assert result_of(BillCounts(11, 1100, 525, cents * CENT_NANO), DEAR, trial=trials)[0] == result
    estimated = msgspec.structs.replace(DEAR, estimated=1)
    said = "replies without a count of the provider, counted here: 1"
    for cents, result in ((1080, "explained"), (1095, "differs")):
        assert result_of(BillCounts(10, 1040, 540, cents * CENT_NANO), estimated)[0] == result
    assert result_of(BillCounts(requests=10, cost_nano=1090 * CENT_NANO), estimated) == ("explained", said)
    assert result_of(BillCounts(requests=10, cost_nano=1120 * CENT_NANO), estimated)[0] == "differs"
    only_trials = compare({}, {AttemptKey(NUMBER, "acme", MODEL, "trial"): trials}, {PLACE: BillCounts(1, 100, 25, 99)})
    assert [(line.result, line.expected_nano) for line in only_trials] == [("explained", None)]


def test_attempts_explain_only_what_is_billed_beyond_ours() -> None:
    """If requests and tokens agree, a price rise is named, however many attempts failed; else it is on top of them."""
    failed, said = AttemptSums(5), "the provider charges 20.0% more than cost_input, cost_output and cost_cached"
    counted = msgspec.structs.replace(DEAR, estimated=1, broken=2)
    for ours in (DEAR, counted):
        result, reasons = billed(1200, ours, timed_out=failed)
        assert (result, reasons.partition(" of its")[0]) == ("differs", said)
    assert result_of(BillCounts(None, 1000, None, 1200 * CENT_NANO), DEAR, timed_out=failed)[0] == "differs"
    assert result_of(BillCounts(12, 1200, 600, 1200 * CENT_NANO), DEAR, timed_out=failed)[0] == "explained"
    result, reasons = result_of(BillCounts(12, 1200, 600, 1440 * CENT_NANO), DEAR, timed_out=failed)
    assert (result, said in reasons) == ("differs", True)
    assert result_of(BillCounts(10, 1200, 600, 1200 * CENT_NANO), DEAR, timed_out=failed)[0] == "differs"


def test_all_lines_together_are_judged_too() -> None:
    """Two days whose cost is off by a cent and a half percent each are off by too much together; a sum is shown."""
    days = [DayModel(f"2026-10-{day:02}", MODEL) for day in range(1, 31)]
    ours = dict.fromkeys(days, ModelCounts(requests=10, prompt_tokens=1000, completion_tokens=500, cost_nano=CENT_NANO))
    right, dear = (BillCounts(10, 1000, 500, cost_nano) for cost_nano in (CENT_NANO, 2 * CENT_NANO))
    total = add_up(compare(ours, {}, dict.fromkeys(days, right)))
    shown = total.shown()
    assert (shown["day"], shown["requests"], shown["billed_requests"]) == ("total", 300, 300)
    assert (shown["cost"], shown["billed_cost"], shown["result"]) == ("0.30", "0.30", "agrees")
    lines = compare(ours, {}, dict.fromkeys(days, dear))
    assert {line.result for line in lines} == {"agrees"}
    total = add_up(lines)
    assert total.result == "differs"
    assert total.reasons[0].startswith("the provider charges 100.0% more than cost_input")
    mixed = add_up(compare({PLACE: DEAR}, {}, {PLACE: BillCounts(9, 1000, 500, 0)}))
    assert (mixed.result, mixed.reasons) == ("differs", ())


def test_semicolons_bring_decimal_commas() -> None:
    """A comma in a number of such a bill is its decimal point, and points part thousands of tokens."""
    text = f"day;model;input_tokens;cost\n{DAY};large;1.234.567;1.234,56\n{DAY};large;1;0.5\n"
    assert read_bill(text.replace(";", "\t").splitlines()) == read_bill(text.splitlines())
    assert read_bill(text.splitlines()) == {PLACE: BillCounts(None, 1_234_568, None, 1_235_060_000_000)}
