"""The table of dialects: which host speaks which, and that docs/upstreams.md has a row for each."""

import re
from pathlib import Path

import msgspec
import pytest

from cadenza.upstreams.dialects import DIALECTS, PLAIN, dialect_of

PAGE = Path(__file__).parents[3] / "docs" / "upstreams.md"
ROW = re.compile(r"^\| `(\w+)` \|", re.MULTILINE)


@pytest.mark.parametrize(
    ("host", "dialect"),
    [
        ("api.openai.com", "openai"),
        ("eu.api.openai.com", "openai"),
        ("openrouter.ai", "openrouter"),
        ("eu.openrouter.ai", "openrouter"),
        ("api.together.ai", "together"),
        ("api.together.xyz", "together"),
        ("api.groq.com", "groq"),
        ("api.mistral.ai", "mistral"),
        ("codestral.mistral.ai", "mistral"),
        ("api.deepseek.com", "deepseek"),
        ("api.moonshot.ai", "kimi"),
        ("api.moonshot.cn", "kimi"),
        ("api.kimi.com", "kimi"),
        ("api.anthropic.com", "anthropic"),
        ("generativelanguage.googleapis.com", "gemini"),
        ("aiplatform.googleapis.com", "gemini"),
        ("europe-west4-aiplatform.googleapis.com", "gemini"),
        ("acme.openai.azure.com", "azure"),
        ("acme.cognitiveservices.azure.com", "azure"),
        ("acme.services.ai.azure.com", "azure"),
        ("acme.openai.azure.us", "azure"),
        ("ollama.com", "ollama"),
        ("x1.eu-west-1.aws.endpoints.huggingface.cloud", "tgi"),
        ("API.Mistral.AI", "mistral"),
        ("127.0.0.1", "plain"),
        ("localhost", "plain"),
        ("mistral.ai.example.org", "plain"),
        ("notopenrouter.ai", "plain"),
        ("api.groq.com.example.org", "plain"),
        ("openai.azure.com.example.org", "plain"),
        ("evil-aiplatform.googleapis.com.example.org", "plain"),
    ],
)
def test_the_host_tells_the_dialect(host: str, dialect: str) -> None:
    """A known host, or a subdomain where those are known, has its dialect; any other host is plain."""
    assert dialect_of(f"https://{host}/v1") == dialect
    assert dialect_of(f"https://{host}:8443") == dialect


@pytest.mark.parametrize("url", ["", "not an address", "https://", "https:///v1"])
def test_an_address_without_a_host_is_plain(url: str) -> None:
    """What is not an address has no host: its dialect is plain, and it is reported elsewhere."""
    assert dialect_of(url) == "plain"


def test_no_host_has_two_dialects() -> None:
    """A host is known to one dialect only."""
    hosts = [host for dialect in DIALECTS.values() for host in dialect.hosts]
    assert len(set(hosts)) == len(hosts)


def test_zero_retention_cannot_be_left_out() -> None:
    """No dialect omits or renames a field that it adds to ask for zero retention."""
    for dialect in DIALECTS.values():
        assert not dialect.adds.keys() & {*dialect.omits, *dialect.renames, *dialect.renames.values()}


def test_plain_changes_nothing() -> None:
    """The plain dialect differs from the defaults only in what it allows."""
    changed = {
        name: value
        for name, value in msgspec.structs.asdict(PLAIN).items()
        if value != msgspec.structs.asdict(type(PLAIN)())[name]
    }
    assert changed.keys() == {"custom_tools", "continue_fields"}


def test_every_dialect_is_documented() -> None:
    """The table of docs/upstreams.md has one row for each dialect, in the order of the source."""
    assert ROW.findall(PAGE.read_text().partition("## Dialects")[2].partition("\n## ")[0]) == list(DIALECTS)


@pytest.mark.parametrize(
    ("sentence", "names"),
    [
        ("served by routes of the dialects {} only", [name for name, one in DIALECTS.items() if one.custom_tools]),
        ("Not possible with {} |", [name for name, one in DIALECTS.items() if not one.continues]),
    ],
)
def test_the_page_lists_what_a_dialect_can_do(sentence: str, names: list[str]) -> None:
    """The lists of dialects in the text of the page are complete, in the order of the source."""
    quoted = [f"`{name}`" for name in names]
    assert sentence.format(f"{', '.join(quoted[:-1])} and {quoted[-1]}") in PAGE.read_text()
