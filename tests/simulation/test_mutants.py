"""The mutants of the money rules fit the source as it is, and the simulation finds some of them at once."""

from pathlib import Path

import pytest

from tests.simulation.mutants import (
    MUTANTS,
    ROOT,
    Edit,
    Mutant,
    mutated,
    read_mutants,
    simulate,
    write_mutant,
)

LISTED = read_mutants(MUTANTS.read_text())


def test_mutants_have_names_of_their_own() -> None:
    """And there are enough of them."""
    names = [one.name for one in LISTED]
    assert len({*names}) == len(names) > 50


@pytest.mark.parametrize("mutant", LISTED, ids=lambda one: one.name)
def test_a_mutant_applies_to_the_source(mutant: Mutant) -> None:
    """Each text that it replaces occurs once, and the result compiles and is another program."""
    changed = mutated(mutant, ROOT / "src" / "cadenza")
    assert changed
    for file, text in changed.items():
        compile(text, file, "exec")
        assert text != (ROOT / "src" / "cadenza" / file).read_text()


@pytest.mark.release(reason="simulates wrong programs until a rule is broken")
@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("leaving-is-free", "who leaves pays for what was delivered"),
        ("used-key-is-free", "a reply that ended is charged what is due"),
    ],
)
def test_a_mutant_is_found(name: str, rule: str, tmp_path: Path) -> None:
    """By one of the first seeds; `python -m tests.simulation.mutants` runs all mutants."""
    [mutant] = [one for one in LISTED if one.name == name]
    write_mutant(mutant, tmp_path)
    result, finding = simulate(tmp_path, mutant, seeds=3, seconds=60)
    assert (result, finding.rule) == ("found", rule)


def test_a_source_that_cannot_be_imported_is_not_found(tmp_path: Path) -> None:
    """It breaks no rule: it fails."""
    edit = Edit("ledger/rules.py", "RESERVED_ELSEWHERE = ReservedElsewhere()", "RESERVED_ELSEWHERE = (")
    mutant = Mutant("broken", "", [edit])
    write_mutant(mutant, tmp_path)
    result, finding = simulate(tmp_path, mutant, seeds=1, seconds=60)
    assert (result, finding.seed) == ("failed (1)", None)
    assert "SyntaxError" in finding.rule
