"""Files that go to the model as they are: credit is held for what a provider may count, and nothing is lost."""

import base64
from collections.abc import Iterator
from typing import Any

import pytest

from tests.account import open_account
from tests.contract.agent import TOOLS
from tests.loopback import Json, LoopbackUpstream, completion
from tests.service import Service
from tests.service_config import ServiceSpec

WINDOW_TOKENS = 200_000
INPUT_NANO, OUTPUT_NANO = 3_450, 17_250  # of fortissimo
CENT_NANO = 10_000_000
DOLLAR_NANO = 100 * CENT_NANO
SENTENCE = "The ship left the harbour at nine in the morning, and nobody was there to wave. "
TEXT = (SENTENCE * 7_000).encode()[:500_000]
TEXT_TOKENS = 166_714  # as a provider counted such a file
ROUTES_TOML = f"""
[[classes.fortissimo.routes]]
provider = "loopback"
model = "takes-files"
context_tokens = {WINDOW_TOKENS}
max_output_tokens = 8_192
files = true
"""


@pytest.fixture(scope="module")
def passing(shared_upstream: LoopbackUpstream) -> Iterator[Service]:
    """Files are read on the plain path, and passed on with tools."""
    with Service(ServiceSpec({"loopback": shared_upstream.base_url}, {}, ROUTES_TOML)) as service:
        yield service


@pytest.fixture(scope="module")
def unread(shared_upstream: LoopbackUpstream) -> Iterator[Service]:
    """Files are passed on always."""
    toml = f"{ROUTES_TOML}\n[grounding]\nattachments = false\n"
    with Service(ServiceSpec({"loopback": shared_upstream.base_url}, {}, toml)) as service:
        yield service


@pytest.fixture(params=["tools", "attachments off"])
def way(request: pytest.FixtureRequest) -> tuple[Service, dict[str, Any]]:
    """A service that passes files on, and the fields of a request for which it does."""
    if request.param == "tools":
        return request.getfixturevalue("passing"), {"tools": TOOLS}
    return request.getfixturevalue("unread"), {}


def asking(data: bytes, media_type: str) -> dict[str, Any]:
    file_data = f"data:{media_type};base64,{base64.b64encode(data).decode()}"
    file = {"type": "file", "file": {"filename": "a", "file_data": file_data}}
    content = [file, {"type": "text", "text": "Sum it up."}]
    return {"model": "fortissimo", "messages": [{"role": "user", "content": content}], "max_tokens": 100}


def counts(upstream: LoopbackUpstream, prompt_tokens: int) -> None:
    """The upstream's answer to everything."""
    usage = {"prompt_tokens": prompt_tokens, "completion_tokens": 10}
    upstream.always(Json(completion("A ship left.", usage=usage)))


def cost_nano(prompt_tokens: int) -> int:
    return prompt_tokens * INPUT_NANO + 10 * OUTPUT_NANO


@pytest.mark.parametrize("credit_nano", [2 * CENT_NANO, 50 * CENT_NANO])
def test_an_account_that_cannot_pay_for_a_text_file_is_refused(
    way: tuple[Service, dict[str, Any]], upstream: LoopbackUpstream, credit_nano: int
) -> None:
    """500 KB of text cost more than half a dollar: 402, and the upstream is not asked."""
    service, fields = way
    counts(upstream, TEXT_TOKENS)
    with open_account(service, credit_nano) as account:
        reply = account.api.post({**asking(TEXT, "text/plain"), **fields})
        assert "prompt tokens" in reply.error(402, "insufficient_quota")
        assert account.charges == []
    assert upstream.requests == []


def test_a_text_file_is_charged_by_the_count_of_the_upstream(
    way: tuple[Service, dict[str, Any]], upstream: LoopbackUpstream
) -> None:
    """The hold covered it: the account pays all of it, and the rest is free again."""
    service, fields = way
    counts(upstream, TEXT_TOKENS)
    with open_account(service, DOLLAR_NANO) as account:
        reply = account.api.post({**asking(TEXT, "text/plain"), **fields})
        assert reply.json["usage"]["prompt_tokens"] == TEXT_TOKENS
        assert account.charge()["amount_nano"] == -cost_nano(TEXT_TOKENS)


@pytest.mark.parametrize("media_type", ["text/plain", "application/pdf", "application/octet-stream", "image/png"])
@pytest.mark.parametrize("cents", [2, 20, 60])
def test_no_credit_is_too_small_for_its_charge(
    passing: Service, upstream: LoopbackUpstream, cents: int, media_type: str
) -> None:
    """Whatever type a text claims to be: the request is refused, or charged in full."""
    counts(upstream, TEXT_TOKENS)
    with open_account(passing, cents * CENT_NANO) as account:
        reply = account.api.post({**asking(TEXT, media_type), "tools": TOOLS})
        assert reply.status in {200, 402}
        assert account.spent_nano == (cost_nano(TEXT_TOKENS) if reply.status == 200 else 0)


def test_a_pdf_of_many_pages_in_few_bytes_is_held_for_by_its_pages(
    passing: Service, upstream: LoopbackUpstream
) -> None:
    """A provider counts the picture of every page, also of an empty one."""
    pdf = b"%PDF-1.7\n" + b"".join(b"%d 0 obj<</Type/Page/Parent 2 0 R>>endobj\n" % n for n in range(3, 40))
    tokens = 37 * 2_500
    counts(upstream, tokens)
    with open_account(passing, 10 * CENT_NANO) as account:
        assert account.api.post({**asking(pdf, "application/pdf"), "tools": TOOLS}).status == 402
    with open_account(passing, 70 * CENT_NANO) as account:
        assert account.api.post({**asking(pdf, "application/pdf"), "tools": TOOLS}).status == 200
        assert account.charge()["amount_nano"] == -cost_nano(tokens)


def test_a_large_file_is_held_for_up_to_the_window(passing: Service, upstream: LoopbackUpstream) -> None:
    """A scan of many megabytes has few tokens, and no model takes more than its window: 75 cents are enough."""
    tokens = 40 * 1_600
    counts(upstream, tokens)
    with open_account(passing, 75 * CENT_NANO) as account:
        scan = b"%PDF-1.7\n" + bytes(4_000_000)
        assert account.api.post({**asking(scan, "application/pdf"), "tools": TOOLS}).status == 200
        assert account.charge()["amount_nano"] == -cost_nano(tokens)


def test_a_count_far_beyond_the_window_is_not_charged(passing: Service, upstream: LoopbackUpstream) -> None:
    """The route takes 200,000 tokens, so a million were not sent: our own count is charged, as an estimate."""
    counts(upstream, 1_000_046)
    with open_account(passing, 10 * DOLLAR_NANO) as account:
        words = {"messages": [{"role": "user", "content": "sea " * 170_000}], "model": "fortissimo", "max_tokens": 100}
        assert account.api.post(words).status == 200
        charge = account.charge()
        assert charge["estimated"]
        assert 170_000 <= charge["prompt_tokens"] < WINDOW_TOKENS
        assert charge["amount_nano"] == -cost_nano(charge["prompt_tokens"])
