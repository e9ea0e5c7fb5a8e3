"""Bills of providers: their columns are read by any of their usual names, and differences are explained or not."""

import pytest

from cadenza.core.attempts import AttemptKey, AttemptSums
from cadenza.core.bills import BillCounts, DayModel, ModelCounts, compare, match_models, read_bill

DAY, MODEL = "2026-10-01", "large"
PLACE = DayModel(DAY, MODEL)
NUMBER = 20_727  # of the day
OURS = ModelCounts(requests=10, prompt_tokens=1000, completion_tokens=500)
OPENAI = (
    "start_time_iso,model,num_model_requests,input_tokens,output_tokens,input_cached_tokens\n"
    f"{DAY}T00:00:00+00:00,large-2026-05-01,10,1000,500,7\n"
)
ANTHROPIC = (
    "usage_date_utc,model_version,api_key,usage_input_tokens_no_cache,usage_input_tokens_cache_write_5m,"
    f"usage_input_tokens_cache_read,usage_output_tokens\n{DAY},large,a,600,100,100,300\n{DAY},large,b,200,0,0,200\n"
)
OPENROUTER = f'Date,Model,Usage,Requests,Prompt Tokens,Completion Tokens\n{DAY},LARGE,0.0123456789012,10,"1,000",500\n'
SECONDS = "start_time,model,requests,input_tokens,output_tokens\n1790812800,large,10,1000,500\n"


def result_of(billed: BillCounts, ours: ModelCounts = OURS, **kinds: AttemptSums) -> tuple[str, str]:
    attempts = {AttemptKey(NUMBER, "acme", MODEL, kind): sums for kind, sums in kinds.items()}
    [line] = compare({PLACE: ours}, attempts, {PLACE: billed})
    return line.result, "; ".join(line.reasons)


@pytest.mark.parametrize("text", [OPENAI, ANTHROPIC, OPENROUTER, SECONDS])
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
        ("day,model,requests\n2026-10-01,m,many\n", "line 2 of the bill: .*not a number"),
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
