"""What the config says about classes: the route that a candidate's name means, and what its tokens cost."""

import re
from pathlib import Path

import pytest

from cadenza.config import Settings, load_settings
from cadenza.config.class_records import class_rules, find_candidate, known_cost
from cadenza.core.money import Price

CONFIG = """
[providers.acme]
kind = "openai"
base_url = "https://acme.example/v1"
retention = "zero"

[providers.local]
kind = "embedded"
retention = "zero"

[[classes.forte.routes]]
provider = "acme"
model = "large-1"
context_tokens = 9000
max_output_tokens = 1000
cost_input = "1.00"
cost_output = "4.00"

[[classes.forte.candidates]]
provider = "acme"
model = "large-2"
context_tokens = 8000
max_output_tokens = 1000

[[classes.mezzo.routes]]
provider = "acme"
model = "large-2"
context_tokens = 7000
max_output_tokens = 1000
cost_input = "2.00"
cost_output = "3.00"
"""


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    (tmp_path / "cadenza.toml").write_text(CONFIG)
    return load_settings(None, {}, tmp_path)


@pytest.mark.parametrize(
    ("class_id", "text", "name", "context_tokens"),
    [
        ("forte", "acme/large-2", "acme/large-2", 8000),  # a candidate of the class
        ("fortissimo", "acme/large-1", "acme/large-1", 9000),  # else a route or a candidate of any class
        ("forte", "acme/team/new", "acme/team/new", 128_000),  # else the defaults of its kind of provider
        pytest.param("forte", "local", "local/smollm2-135m-instruct", 8192, marks=pytest.mark.parts(reason="embedded")),
    ],
)
def test_candidates(settings: Settings, class_id: str, text: str, name: str, context_tokens: int) -> None:
    """The settings of a candidate are those of the class, else those of any class, else the defaults."""
    found = find_candidate(settings, class_id, text)
    assert (found.name, found.context_tokens) == (name, context_tokens)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("acne/large-2", "no provider is named 'acne'; did you mean \"acme\"?"),
        ("acme", "name a model too, PROVIDER/MODEL; the config has acme/large-2, acme/large-1"),
        pytest.param(
            "local/other",
            "the provider 'local' has one model: use 'local/smollm2-135m-instruct'",
            marks=pytest.mark.parts(reason="embedded"),
        ),
    ],
)
def test_candidates_that_do_not_exist(settings: Settings, text: str, problem: str) -> None:
    """The error says what to name instead."""
    with pytest.raises(ValueError, match=re.escape(f"--candidate {text}: {problem}")):
        find_candidate(settings, "forte", text)


def test_costs(settings: Settings) -> None:
    """Several routes cost as much as the dearest, unless one has no costs. The embedded model is free."""
    one, two = (find_candidate(settings, "forte", f"acme/large-{number}") for number in (1, 2))
    local, new = (find_candidate(settings, "forte", name) for name in ("local", "acme/new"))
    assert known_cost(settings, (one, two)) == Price(1000, 4000)
    assert known_cost(settings, (one, new)) is None
    assert known_cost(settings, (local,)) == Price(0, 0)


def test_pins(settings: Settings) -> None:
    """A class with routes is pinned by their line; one that the config does not have is not."""
    assert class_rules(settings, "forte").pin == f"{settings.source}, line 11"
    assert class_rules(settings, "fortissimo").pin == ""
