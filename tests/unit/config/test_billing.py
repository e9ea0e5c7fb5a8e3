"""The configuration of documents: the seller, the numbers and the tax."""

from pathlib import Path

import pytest

from cadenza.config import ConfigError
from cadenza.core.documents import Party, Seller, split_tax
from tests.unit.config.test_platform import load

SELLER = '[billing]\nseller = "Example Ltd"\n'
CENT_NANO = 10_000_000


def test_everything_is_given(tmp_path: Path) -> None:
    """A rate is exact to a thousandth of a percent, and an address has lines."""
    more = (
        'address = """\nA\nB"""\ntax_id = "1"\nnumber_prefix = "EX-"\ntax_label = "VAT"\ntax_rate = "8.1"\nnote = "n"\n'
    )
    assert load(tmp_path, SELLER + more).billing == Seller(Party("Example Ltd", "A\nB", "1"), "EX-", "VAT", 8_100, "n")
    assert load(tmp_path, "").billing is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[billing]\ntax_id = "1"\n', "billing.seller: missing"),
        (f'{SELLER}tax_rate = "100"\n', 'like "19" or "8.875"'),
        (f"{SELLER}tax_rate = 19\n", 'like "19" or "8.875"'),
        (f'{SELLER}number_prefix = "a/b"\n', "capitals, digits and hyphens"),
        (f'{SELLER}vat = "19"\n', "billing.vat: unknown key"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, text: str, said: str) -> None:
    """A missing seller, a rate that is none, a prefix that fits no address, and an unknown key."""
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("cents", "rate", "tax_cents"),
    [(1000, 23_000, 187), (119, 19_000, 19), (1, 19_000, 0), (3, 20_000, 1), (100, 99_999, 50)],
)
def test_the_tax_is_a_part_of_the_amount(cents: int, rate: int, tax_cents: int) -> None:
    """To the cent, half a cent up; net and tax add up to the amount."""
    tax = split_tax(Seller(Party("a"), tax_rate=rate), cents * CENT_NANO)
    assert tax
    assert (tax.tax_nano, tax.net_nano) == (tax_cents * CENT_NANO, (cents - tax_cents) * CENT_NANO)
