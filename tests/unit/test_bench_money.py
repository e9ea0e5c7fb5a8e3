"""The reckoning of `make bench-money`: it finds what was planted in its records, and nothing in sound ones."""

import msgspec
from bench.money.plot import draw
from bench.money.reckon import Asked, Billed, CountedAmount, Ending, Evidence, Supplied, Wallet, reckon
from bench.money.report import GatewayResult, MoneyResults, render
from bench.money.script import ScriptedRequest, price

TOKENS = 10
NONE = CountedAmount()


def asked(number: int, wallet: str = "w", ending: Ending = "whole", began_s: float = 1.0) -> Asked:
    return Asked(number, wallet, began_s, began_s + 1, ending, 200, f"id-{number}")


def supplied(number: int, tokens: int = TOKENS) -> Supplied:
    return Supplied(number, f"upstream-{number}", 100 + number, tokens)


def billed(number: int, wallet: str = "w", tokens: int = TOKENS) -> Billed:
    return Billed(wallet, f"id-{number}", 100 + number, due(number, tokens))


def due(number: int, tokens: int = TOKENS) -> int:
    return price(100 + number, tokens)


def sound() -> Evidence:
    """Three requests, each charged once."""
    numbers = (1, 2, 3)
    wallet = Wallet("w", 10**9, sum(map(due, numbers)), is_steady=True)
    return Evidence(
        [wallet], [*map(asked, numbers)], [*map(supplied, numbers)], [*map(billed, numbers)], began_s=0.0, ended_s=4.0
    )


def test_sound_records_have_no_findings() -> None:
    """If each request is charged once, as the upstream counted it, every finding is zero."""
    figures = reckon(sound())
    assert figures.due_nano == figures.charged_nano == sum(map(due, (1, 2, 3)))
    assert (figures.lost_whole, figures.lost_broken, figures.doubled) == (NONE, NONE, NONE)
    assert (figures.excess, figures.unknown, figures.overdraft) == (NONE, NONE, NONE)
    assert (figures.accepted_after_revocation, figures.balance_off_nano) == (0, 0)


def test_a_missing_charge_is_lost() -> None:
    """What was due and is not charged is lost, apart for replies that arrived whole and those that did not."""
    before = sound()
    endings = [asked(1), asked(2), asked(3, ending="broken")]
    figures = reckon(msgspec.structs.replace(before, asked=endings, billed=[billed(1)]))
    assert figures.lost_whole == CountedAmount(1, due(2))
    assert figures.lost_broken == CountedAmount(1, due(3))


def test_a_second_charge_is_doubled() -> None:
    """A second charge of a request is doubled, also if only its prompt tokens say whose it is."""
    before = sound()
    again = msgspec.structs.replace(billed(2), id="")
    figures = reckon(msgspec.structs.replace(before, billed=[*before.billed, again]))
    assert figures.doubled == CountedAmount(1, due(2))
    assert figures.balance_off_nano == -due(2)


def test_a_charge_above_what_is_due_is_excess() -> None:
    """A charge for tokens that the upstream did not send is excess, and one that no request explains is unknown."""
    before = sound()
    strange = Billed("w", "id-9", 999, 7)
    figures = reckon(
        msgspec.structs.replace(before, billed=[billed(1, tokens=TOKENS + 1), billed(2), billed(3), strange])
    )
    assert figures.excess == CountedAmount(1, due(1, TOKENS + 1) - due(1))
    assert figures.unknown == CountedAmount(1, 7)


def test_service_beyond_the_budget_is_overdraft() -> None:
    """What the upstream served for an account beyond its budget is overdraft, whether or not it was charged."""
    before = sound()
    poor = msgspec.structs.replace(before.wallets[0], budget_nano=due(1) + due(2))
    figures = reckon(msgspec.structs.replace(before, wallets=[poor], billed=before.billed[:2]))
    assert figures.overdraft == CountedAmount(1, due(3))


def test_only_requests_that_began_after_a_revocation_count() -> None:
    """A request that began after the revocation returned, and got 200, was accepted after it."""
    before = sound()
    revoked = msgspec.structs.replace(before.wallets[0], revoked_s=1.5)
    later = [
        asked(1),
        asked(2, began_s=1.6),
        msgspec.structs.replace(asked(3, began_s=2.0), status=401, ending="refused"),
    ]
    assert reckon(msgspec.structs.replace(before, wallets=[revoked], asked=later)).accepted_after_revocation == 1


def test_the_longest_gap_is_between_whole_replies() -> None:
    """The time without service is the longest between two whole replies, or to an end of the load."""
    before = sound()
    times = [asked(1, began_s=0.5), asked(2, ending="broken", began_s=1.5), asked(3, began_s=4.0)]
    assert reckon(msgspec.structs.replace(before, asked=times, ended_s=6.0)).longest_gap_s == 3.5


def test_the_upstream_reads_what_a_client_wrote() -> None:
    """A tag says the number, the tokens and the pace of a request, and the same seed makes the same request."""
    request = ScriptedRequest.make(seed=1, number=7)
    prompt = msgspec.json.decode(request.body("m", words=3))["messages"][0]["content"]
    read = ScriptedRequest.read(prompt)
    assert (read.number, read.tokens, read.gap_ms) == (7, request.tokens, request.gap_ms)
    assert request == ScriptedRequest.make(seed=1, number=7) != ScriptedRequest.make(seed=2, number=7)


def test_the_report_has_each_run_and_the_spread() -> None:
    """With the commit and the load of each gateway in each run; one that failed once has its reason."""
    before = sound()
    whole, lost = (reckon(one) for one in (before, msgspec.structs.replace(before, billed=before.billed[:2])))
    machine: dict[str, str | int] = {"cores": 2, "cpu": "a processor"}
    first = GatewayResult(
        "cadenza", "1.0", 1, reckoning=whole, commit="abc1", load_before="0.50", load_after="2.25", served_per_s=[3]
    )
    second = msgspec.structs.replace(first, reckoning=lost, commit="abc2", load_before="7.75", load_after="9.00")
    failed = GatewayResult("peer", reason="it did not start")
    peer = GatewayResult("peer", "2.0", 3, reckoning=whole, commit="abc2", load_before="9.00", load_after="8.00")
    never = GatewayResult("other", reason="no accounts")
    runs = [[first, failed, never], [second, peer, never]]
    page = render(MoneyResults("2026-11-18", 1, is_quick=True, machine=machine, runs=runs))
    spread, run_1, run_2 = page.split("## Gateways")[0].split("## Run ")
    assert "Runs of `make bench-money`: 2, quick, seed 1." in spread
    missing = f"{due(3) / 1e9:.6f} (1 request)"
    assert f"| lost, of whole replies | 0 to {missing} | 0 |" in spread
    assert "| cadenza |  | abc1 | 0.50 | 2.25 |" in run_1
    assert "| lost, of whole replies | 0 |" in run_1
    assert "- **peer** was not measured: it did not start." in run_1
    assert "| cadenza |  | abc2 | 7.75 | 9.00 |\n| peer |  | abc2 | 9.00 | 8.00 |" in run_2
    assert f"| lost, of whole replies | {missing} | 0 |" in run_2
    assert page.count("- **other** was not run: no accounts.") == 1
    plot = draw(runs)
    assert [name in plot for name in ("cadenza, run 1", "cadenza, run 2", "peer, run 1", "peer, run 2")] == [
        True,
        True,
        False,
        True,
    ]
