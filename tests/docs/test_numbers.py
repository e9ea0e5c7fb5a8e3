"""Numbers on the pages are those of the program: what a page must say is derived from the constants."""

import re
from collections.abc import Iterator
from importlib.metadata import Distribution, distributions
from pathlib import Path

import pytest

from cadenza.cli.start import DEMO_CREDIT_NANO
from cadenza.config.settings import DEFAULT_PRICES
from cadenza.control.keys import ACTIVE_KEYS_MAX, NEW_KEYS_A_DAY_MAX
from cadenza.core.breaker import FAULTS_TO_OPEN, OPEN_S_MAX, TRIAL_S
from cadenza.core.money import format_dollars
from cadenza.core.query import QUERY_BYTES_MAX, QUERY_FIELDS_MAX
from cadenza.core.rates import Rate
from cadenza.core.records import CONTEXT_TOKENS_MAX, Usage
from cadenza.core.tokens import OUTPUT_TOKENS_MIN
from cadenza.fleet.presence import USUAL_BOUNDS
from cadenza.gateway.billing import DEFAULT_ALLOWANCE_TOKENS
from cadenza.gateway.gateway import BODY_BYTES_MAX
from cadenza.gateway.message_parts import FILES_MAX as ATTACHED_MAX
from cadenza.gateway.messages import CALLS_MAX, PARTS_MAX
from cadenza.gateway.slots import SLOT_WAIT_S
from cadenza.gateway.tools import TOOLS_MAX
from cadenza.gateway.unknown_keys import LOOK_UPS_OF_ONE_ADDRESS
from cadenza.gateway.uploads import SMALL_BYTES
from cadenza.gateway.validate import FIELD_BYTES_MAX, MESSAGES_MAX, SCHEMA_BYTES_MAX
from cadenza.http.body import BodyLimits
from cadenza.ledger.rules import AMPLE_TIMES, IDEMPOTENCY_MS
from cadenza.ledger.sweeps import BATCH_MAX
from cadenza.parts.embedded.commands import DOWNLOAD_MB
from cadenza.parts.evaluation.open import VERDICT_DAYS_MAX
from cadenza.parts.evaluation.trial.trial import REQUESTS_MAX
from cadenza.parts.grounding.notes import NOTE_CHARS_MAX
from cadenza.parts.otlp.exporter import QUEUE_MAX
from cadenza.parts.otlp.traces import FOLLOWED_PER_S
from cadenza.parts.payments.pages import cards, vouchers
from cadenza.parts.postgres.connection import PostgresBounds
from cadenza.parts.protocols.anthropic import COUNTED_BYTES
from cadenza.parts.site import application, visit
from cadenza.parts.site import mailer as messages
from cadenza.parts.site.account import archive, sign_up
from cadenza.parts.site.money import statement, usage
from cadenza.parts.site.sign_in import sign_in
from cadenza.process import FILES_MAX
from cadenza.routing.ceiling import FEW, STEP_DOWN
from cadenza.routing.dispatch import RETRIES_MAX
from cadenza.store.report_turns import REPORTS_MAX, WAIT_S, WAITING_MAX
from cadenza.store.sqlite.files import KEPT_MAX
from cadenza.store.tables.request_details import KEPT_MS, ROWS_MAX
from cadenza.upstreams.openai import TOKENS_PER_IDLE
from tests.docs.markdown import PAGES, ROOT

KIB, MIB, HOUR_MS, DAY_MS = 1024, 1024 * 1024, 60 * 60 * 1000, 24 * 60 * 60 * 1000
INSTALLED = re.compile(r"about (\d+) MB")
INSTALLED_DIFFERS_MAX = 0.1  # from the size of the files: file systems round each of them up
BODY = BodyLimits()

RATES = [
    ("limits.md", "requests", application.PAGE_RATE),
    ("limits.md", "look-ups", LOOK_UPS_OF_ONE_ADDRESS),
    ("platform/reference.md", "requests", application.PAGE_RATE),
    ("platform/reference.md", "requests", application.GUESS_RATE),
    ("platform/sign-in.md", "accounts", sign_up.SIGN_UP_RATE),
    ("platform/sign-in.md", "accounts", sign_up.ALL_SIGN_UPS),
    ("platform/sign-in.md", "e-mails with a link", messages.ADDRESS_RATE),
    ("platform/sign-in.md", "notices of one kind", messages.NOTICE_RATE),
    ("platform/sign-in.md", "forms and changing requests", visit.CHANGE_RATE),
    ("platform/sign-in.md", "attempts", sign_in.KNOWN_RATE),
    ("platform/keys.md", "changes", visit.THINGS_RATE),
    ("platform/credit.md", "wrong codes", vouchers.ACCOUNT_GUESSES),
    ("platform/credit.md", "wrong codes", vouchers.NETWORK_GUESSES),
    ("platform/credit.md", "exports", statement.EXPORTS),
    ("platform/credit.md", "payments", cards.STARTS),
    ("platform/usage.md", "reports", usage.REPORT_RATE),
    ("platform/export.md", "archives", archive.ARCHIVES),
]
FAILURES = [
    *(sign_in.NETWORK_FAILURES, sign_in.ALL_FAILURES, sign_in.SHARE_FAILURES, sign_in.ALL_FAILURES),
    *(sign_in.ACCOUNT_FAILURES, sign_in.DEVICE_FAILURES),
    *(sign_in.CODE_FAILURES, sign_in.RECOVERY_FAILURES, sign_in.PROOF_FAILURES),
]
SENTENCES = [
    ("api.md", f"A body has at most {BODY.bytes_max // MIB} MiB"),
    ("api.md", f"with {BODY.bytes_per_s_min // KIB} KiB/s or more"),
    ("api.md", f"A prompt has at most {CONTEXT_TOKENS_MAX:,} tokens"),
    ("api.md", f"at most {MESSAGES_MAX:,} messages, which have at most {PARTS_MAX:,} content parts"),
    ("api.md", f"content parts and {CALLS_MAX:,} tool calls together"),
    ("api.md", f"have at most {SCHEMA_BYTES_MAX // MIB} MiB each; every other sampling field"),
    ("api.md", f"sampling field and `tool_choice` {FIELD_BYTES_MAX // KIB} KiB"),
    ("api.md", f"its query {QUERY_BYTES_MAX // KIB} KiB and {QUERY_FIELDS_MAX} fields"),
    ("api.md", f"at most {TOOLS_MAX} tools"),
    ("api.md", f"and up to {COUNTED_BYTES // KIB} KiB; otherwise"),
    ("api.md", f"Within {IDEMPOTENCY_MS // HOUR_MS} hours the second request gets 409"),
    ("months.md", f"is charged within {IDEMPOTENCY_MS // HOUR_MS} hours"),
    ("api.md", f"up to {WAITING_MAX} more wait for it, for {WAIT_S:g} seconds"),
    ("parts/grounding.md", f"at most {ATTACHED_MAX} files within its {BODY.bytes_max // MIB} MiB"),
    ("platform/chat.md", f"most {ATTACHED_MAX} files"),
    ("platform/memory.md", f"1 to {NOTE_CHARS_MAX:,} characters"),
    ("start.md", f"a download of {DOWNLOAD_MB} MB"),
    *(
        (page, f"{format_dollars(DEMO_CREDIT_NANO)} dollars of credit")
        for page in ("../README.md", "start.md", "platform.md")
    ),
    ("limits.md", f"at most {BODY_BYTES_MAX // MIB} MiB of memory"),
    ("limits.md", f"the largest size, {BODY.bytes_max // MIB} MiB"),
    ("limits.md", f"A body of up to {SMALL_BYTES // KIB} KiB is not included"),
    ("limits.md", f"{BODY.time_s * BODY.bytes_per_s_min / KIB:g} KiB arrive in any {BODY.time_s:g} seconds"),
    ("limits.md", f"waits up to {SLOT_WAIT_S * 1000:g} ms for a slot"),
    ("limits.md", f"to the hard limit, up to {FILES_MAX:,}"),
    ("deploy.md", f"bodies of {BODY.bytes_max // MIB} MiB"),
    ("parts/postgres.md", f"A process opens up to {PostgresBounds().connections_max}, {REPORTS_MAX} more for reports"),
    (
        "parts/postgres.md",
        f"`max_connections` to {PostgresBounds().connections_max + REPORTS_MAX + 2} for each process",
    ),
    ("deploy.md", f"After {USUAL_BOUNDS.dead_s:g} seconds another process frees the credit"),
    ("deploy.md", f"what it remembers for {USUAL_BOUNDS.fresh_s:g} seconds only"),
    ("deploy.md", f"newest {KEPT_MAX} are kept"),
    ("scale.md", f"Postgres: {PostgresBounds().connections_max + REPORTS_MAX + 2} for each process"),
    ("runbook.md", f"after {USUAL_BOUNDS.dead_s:g} seconds its part is free"),
    ("routes.md", f"retried at most {RETRIES_MAX} times"),
    ("routes.md", f"After {FAULTS_TO_OPEN} faults in a row"),
    ("routes.md", f"each time, up to {OPEN_S_MAX:g} seconds"),
    ("routes.md", f"no answer after {TRIAL_S:g} seconds"),
    ("routes.md", f"falls by {1 - STEP_DOWN:.0%} when"),
    ("routes.md", f"with {FEW} or more requests in flight"),
    ("routes.md", f"for every {TOKENS_PER_IDLE:,} tokens"),
    ("routes.md", f"up to {REQUESTS_MAX} requests"),
    ("routes.md", f"not older than {VERDICT_DAYS_MAX} days"),
    ("monitor.md", f"for {KEPT_MS // DAY_MS} days: it has a row in `request_details`, of {ROWS_MAX:,} at most"),
    ("parts/otlp.md", f"Up to {QUEUE_MAX:,} spans wait"),
    ("parts/otlp.md", f"at most {FOLLOWED_PER_S} requests a second for this reason"),
    ("money.md", f"(`max_tokens`, or {DEFAULT_ALLOWANCE_TOKENS:,} tokens)"),
    ("money.md", f"the prompt and at least {OUTPUT_TOKENS_MIN} tokens"),
    ("money.md", f"can pay for {AMPLE_TIMES} such requests"),
    ("internals-money.md", f"can no longer pay for {AMPLE_TIMES} requests"),
    ("internals-money.md", f"in batches of up to {BATCH_MAX}"),
    ("platform/keys.md", f"at most {ACTIVE_KEYS_MAX:,} active keys and creates at most {NEW_KEYS_A_DAY_MAX:,} in"),
]


def pace(rate: Rate) -> str:
    """How a page says a rate after its burst: `50 a second`, `one in 10 seconds`, `one a minute`."""
    if rate.per_s >= 1:
        return f"{ {1: 'one', 2: 'two'}.get(round(rate.per_s), f'{rate.per_s:g}') } a second"
    every_s = round(1 / rate.per_s)
    if every_s == 60:
        return "one a minute"
    return f"one in {every_s} seconds" if every_s % 60 else f"one in {every_s // 60} minutes"


def words_of(name: str) -> str:
    """A page on one line."""
    return " ".join((ROOT / "docs" / name).read_text().split())


@pytest.mark.parametrize(("page", "noun", "rate"), RATES)
def test_a_rate_is_that_of_the_program(page: str, noun: str, rate: Rate) -> None:
    """A page that tells a limit has its burst and its pace."""
    assert f"{rate.burst} {noun} at once, and then {pace(rate)}" in words_of(page)


def test_the_table_of_failed_attempts_is_that_of_the_program() -> None:
    """The page about signing in has the limits of failed attempts, in this order."""
    table = words_of("platform/sign-in.md").partition("| limit | failed attempts | then |")[2]
    assert re.findall(r"\| (\d+) \| ([^|]+) \|", table)[: len(FAILURES)] == [
        (str(rate.burst), pace(rate)) for rate in FAILURES
    ]


@pytest.mark.parametrize(("page", "sentence"), SENTENCES)
def test_a_bound_is_that_of_the_program(page: str, sentence: str) -> None:
    """A page that tells a bound has the number of the program."""
    assert sentence in words_of(page)


def test_no_page_has_another_rate_of_pages() -> None:
    """Wherever a page tells how many requests to pages are answered, it is the same number."""
    told = re.compile(r"[Pp]ages[^.|]* limited to (\d+) requests at once, and then (\d+) a second")
    found = {match for page in PAGES for match in told.findall(" ".join(page.read_text().split()))}
    assert found == {(str(application.PAGE_RATE.burst), f"{application.PAGE_RATE.per_s:g}")}


def test_the_example_of_a_charge_is_right() -> None:
    """docs/money.md computes as the program does: a hold, a charge, what is left, and what a small balance gets."""
    price = DEFAULT_PRICES["forte"]
    held_nano, cost_nano = price.quote(1_200, 500), price.charge(Usage(1_187, 312))
    page = words_of("money.md")
    for step, nano in (
        ("1,200 in, 500 out |", held_nano),
        ("1,187 in, 312 out |", cost_nano),
        ("again | |", held_nano - cost_nano),
    ):
        assert f"{step} {nano:,} | {format_dollars(nano)} |" in page
    assert f"0.002 dollars, the same request gets at most {price.affordable(2_000_000, 1_200)} tokens" in page
    assert price.affordable(1_000_000, 1_200) < 0


def test_the_glossary_is_in_order() -> None:
    """Each word has one sentence or two and a link, in alphabetical order."""
    entries = re.findall(r"^## (.+)\n\n(.+)$", (ROOT / "docs" / "glossary.md").read_text(), re.MULTILINE)
    words = [word.strip("`").lower() for word, _ in entries]
    assert words == sorted(words)
    assert [word for word, text in entries if not re.search(r"\.(?: \[More\]\([^)]+\))$", text)] == []


def test_the_installed_size_is_true() -> None:
    """README and Makefile say the same size, and the installed packages have about that size."""
    told = {INSTALLED.findall((ROOT / name).read_text())[0] for name in ("README.md", "Makefile")}
    assert len(told) == 1
    names = pinned()
    packages = [package for package in distributions() if as_pinned(package.name) in names]
    assert len(packages) > len(names) / 2
    installed = sum(size for package in packages for size in sizes(package)) / 1e6
    assert abs(installed / int(told.pop()) - 1) < INSTALLED_DIFFERS_MAX


def pinned() -> set[str]:
    """The packages that `make run` installs, and those of other systems."""
    files = [ROOT / "requirements" / name for name in ("run.txt", "otlp.txt")]
    files.append(ROOT / "src" / "cadenza" / "parts" / "embedded" / "pins.txt")
    found = {
        name for file in files for name in re.findall(r"^([\w.-]+)(?:\[[^]]*\])?==", file.read_text(), re.MULTILINE)
    }
    return {*map(as_pinned, found), "pip", "uv", "setuptools"}


def as_pinned(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def sizes(package: Distribution) -> Iterator[int]:
    """The files of a package, and what Python compiles of them."""
    for file in map(Path, map(package.locate_file, package.files or [])):  # type: ignore[arg-type]
        compiled = [*(file.parent / "__pycache__").glob(f"{file.stem}.*.pyc")] if file.suffix == ".py" else []
        yield from (path.stat().st_size for path in {file, *compiled} if path.exists())
