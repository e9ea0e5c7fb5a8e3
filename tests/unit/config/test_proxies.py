"""Which proxy the environment names for an address, and which addresses are exempt: the tables of proxies.txt."""

import ast
from pathlib import Path

import pytest

from cadenza.config.proxies import proxy_for
from cadenza.core.config_keys import CheckError

HTTPS = "https://api.example.com/v1"
ONE = "http://one.test:3128"
NAMED, EXEMPT, NOT_EXEMPT, UNUSABLE = (
    block.splitlines()[1:] for block in (Path(__file__).parent / "proxies.txt").read_text().split("\n\n")
)


@pytest.mark.parametrize("row", NAMED)
def test_the_proxy_of_an_address(row: str) -> None:
    """The variable of the address's scheme comes before ALL_PROXY, and lower case before upper case."""
    url, _, rest = row.partition(" ")
    environ, _, proxy = rest.rpartition(" ")
    assert str(proxy_for(url, ast.literal_eval(environ))) == proxy


@pytest.mark.parametrize("row", [*EXEMPT, *NOT_EXEMPT])
@pytest.mark.parametrize("name", ["NO_PROXY", "no_proxy"])
def test_an_exempt_address_has_no_proxy(row: str, name: str) -> None:
    """NO_PROXY lists hosts, domains, networks and ports, in either case; what does not match exempts nothing."""
    url, _, no_proxy = row.partition(" ")
    assert proxy_for(url, {"ALL_PROXY": ONE, name: ast.literal_eval(no_proxy)}) == (None if row in EXEMPT else ONE)


@pytest.mark.parametrize("row", UNUSABLE)
def test_an_unusable_proxy_is_a_mistake(row: str) -> None:
    """It stops the start, unless the address is exempt, and the sentence does not show it."""
    proxy = ast.literal_eval(row)
    with pytest.raises(CheckError) as mistake:
        proxy_for(HTTPS, {"HTTPS_PROXY": proxy})
    assert not any(secret in str(mistake.value) for secret in ("secret-7", "one.test"))
    assert proxy_for(HTTPS, {"HTTPS_PROXY": proxy, "NO_PROXY": "example.com"}) is None
