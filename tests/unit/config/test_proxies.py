"""Which proxy the environment names for an address, and which addresses are exempt."""

import pytest

from cadenza.config.proxies import proxy_for
from cadenza.core.config_keys import CheckError

HTTPS = "https://api.example.com/v1"
HTTP = "http://api.example.com/v1"
ONE, TWO, THREE = "http://one.test:3128", "http://two.test:3128", "http://three.test:3128"

NAMED = [
    (HTTPS, {}, None),
    (HTTPS, {"HTTPS_PROXY": ONE}, ONE),
    (HTTPS, {"https_proxy": ONE}, ONE),
    (HTTPS, {"HTTP_PROXY": ONE}, None),
    (HTTP, {"HTTP_PROXY": ONE}, ONE),
    (HTTP, {"http_proxy": ONE}, ONE),
    (HTTP, {"HTTPS_PROXY": ONE}, None),
    (HTTP, {"HTTP_PROXY": ONE, "HTTPS_PROXY": TWO, "ALL_PROXY": THREE}, ONE),
    (HTTPS, {"HTTP_PROXY": ONE, "HTTPS_PROXY": TWO, "ALL_PROXY": THREE}, TWO),
    (HTTPS, {"HTTP_PROXY": ONE, "ALL_PROXY": THREE}, THREE),
    (HTTPS, {"all_proxy": ONE}, ONE),
    (HTTP, {"ALL_PROXY": ONE}, ONE),
    (HTTPS, {"https_proxy": ONE, "HTTPS_PROXY": TWO}, ONE),
    (HTTPS, {"https_proxy": "", "HTTPS_PROXY": TWO}, TWO),
    (HTTPS, {"HTTPS_PROXY": ""}, None),
    (HTTPS, {"HTTPS_PROXY": "  "}, None),
    (HTTPS, {"HTTPS_PROXY": f" {ONE}\n"}, ONE),
    (HTTPS, {"HTTPS_PROXY": "one.test:3128"}, ONE),
    (HTTPS, {"HTTPS_PROXY": "127.0.0.1:3128"}, "http://127.0.0.1:3128"),
    (HTTPS, {"HTTPS_PROXY": "user:p%40ss@one.test:3128"}, "http://user:p%40ss@one.test:3128"),
    (HTTPS, {"HTTPS_PROXY": "http://[::1]:3128"}, "http://[::1]:3128"),
    (HTTPS, {"HTTPS_PROXY": "http://one.test"}, "http://one.test"),
    (HTTPS, {"HTTPS_PROXY": "HTTP://one.test:3128/"}, "HTTP://one.test:3128/"),
    (HTTPS, {"NO_PROXY": "elsewhere.test"}, None),
]

EXEMPT = [
    (HTTPS, "*"),
    (HTTPS, "api.example.com"),
    (HTTPS, "API.Example.COM"),
    ("https://API.EXAMPLE.com/v1", "api.example.com"),
    (HTTPS, "example.com"),
    (HTTPS, ".example.com"),
    (HTTPS, "*.example.com"),
    (HTTPS, "com"),
    (HTTPS, "elsewhere.test, api.example.com"),
    (HTTPS, " , ,api.example.com,"),
    ("https://api.example.com:8443/v1", "api.example.com"),
    ("https://api.example.com:8443/v1", "api.example.com:8443"),
    (HTTPS, "api.example.com:443"),
    (HTTP, "api.example.com:80"),
    ("http://127.0.0.1:8000/v1", "127.0.0.1"),
    ("http://127.0.0.1:8000/v1", "127.0.0.1:8000"),
    ("http://10.1.2.3/v1", "10.0.0.0/8"),
    ("http://10.1.2.3/v1", "10.9.9.9/8"),
    ("http://[::1]:8000/v1", "::1"),
    ("http://[fd00::7]/v1", "fd00::/8"),
    ("http://localhost:8000/v1", "localhost,127.0.0.1"),
]

NOT_EXEMPT = [
    (HTTPS, ""),
    (HTTPS, ","),
    (HTTPS, "elsewhere.test"),
    (HTTPS, "ample.com"),
    (HTTPS, "api.example.com.evil.test"),
    (HTTPS, "other.api.example.com"),
    (HTTPS, "*api.example.com.test"),
    (HTTPS, "10.0.0.0/8"),
    (HTTPS, "api.example.com/8"),
    ("https://example.com/v1", ".example.com"),
    ("https://api.example.com:8443/v1", "api.example.com:443"),
    ("http://11.1.2.3/v1", "10.0.0.0/8"),
    ("http://10.1.2.3/v1", "10.0.0.0/999"),
    ("http://10.1.2.3/v1", "fd00::/8"),
    ("http://127.0.0.1:8000/v1", "localhost"),
]

UNUSABLE = [
    "https://one.test:3128",
    "socks5://one.test:1080",
    "socks5h://user:secret-7@one.test:1080",
    "http://",
    "http://:3128",
    "http://one.test:secret-7",
    "http://one.test:99999",
    "http://user:secret-7@[::1",
    "://secret-7",
]


@pytest.mark.parametrize(("url", "environ", "proxy"), NAMED, ids=str)
def test_the_proxy_of_an_address(url: str, environ: dict[str, str], proxy: str | None) -> None:
    """The variable of the address's scheme comes before ALL_PROXY, and lower case before upper case."""
    assert proxy_for(url, environ) == proxy


@pytest.mark.parametrize(("url", "no_proxy"), EXEMPT)
@pytest.mark.parametrize("name", ["NO_PROXY", "no_proxy"])
def test_an_exempt_address_has_no_proxy(url: str, no_proxy: str, name: str) -> None:
    """NO_PROXY lists hosts, domains, networks and ports, in upper or lower case."""
    assert proxy_for(url, {"ALL_PROXY": ONE, name: no_proxy}) is None


@pytest.mark.parametrize(("url", "no_proxy"), NOT_EXEMPT)
def test_a_rule_that_does_not_match_exempts_nothing(url: str, no_proxy: str) -> None:
    """Part of a name, another network or another port does not exempt an address."""
    assert proxy_for(url, {"ALL_PROXY": ONE, "NO_PROXY": no_proxy}) == ONE


@pytest.mark.parametrize("proxy", UNUSABLE)
def test_an_unusable_proxy_is_a_mistake(proxy: str) -> None:
    """A proxy that is not http://, or not an address, stops the start, and the sentence does not show it."""
    with pytest.raises(CheckError) as mistake:
        proxy_for(HTTPS, {"HTTPS_PROXY": proxy})
    assert "secret-7" not in str(mistake.value)
    assert "one.test" not in str(mistake.value)


@pytest.mark.parametrize("proxy", UNUSABLE)
def test_an_unusable_proxy_does_not_matter_to_an_exempt_address(proxy: str) -> None:
    """An exempt address loads even if the environment names an unusable proxy."""
    assert proxy_for(HTTPS, {"HTTPS_PROXY": proxy, "NO_PROXY": "example.com"}) is None
