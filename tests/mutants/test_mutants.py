"""The listed mutants fit the source as it is, and the tests that should find them exist."""

import pytest

from tests.mutants.__main__ import ROOT, Mutant, read_mutants

LISTED = [*read_mutants()]


def test_each_mutant_is_listed_once() -> None:
    """And there are enough of them."""
    assert len({(one.file, one.old, one.new) for one in LISTED}) == len(LISTED) > 100


@pytest.mark.parametrize("mutant", LISTED, ids=lambda one: f"{one.file}: {one.new}")
def test_a_mutant_applies_to_the_source(mutant: Mutant) -> None:
    """Its line occurs once, the result compiles and is another program, and its tests are there."""
    text = (ROOT / "src" / "cadenza" / mutant.file).read_text()
    changed = mutant.apply(text)
    assert changed != text
    compile(changed, mutant.file, "exec")
    assert mutant.tests
    assert all((ROOT / path).exists() for path in mutant.tests)
