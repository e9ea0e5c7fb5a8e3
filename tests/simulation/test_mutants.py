"""The mutants of the money rules fit the source as it is."""

import pytest

from tests.simulation.mutants import MUTANTS, ROOT, Mutant, mutated, read_mutants

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
