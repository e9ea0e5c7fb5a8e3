"""Which proxy the environment names for an address."""

from collections.abc import Mapping
from ipaddress import ip_address, ip_network
from urllib.parse import urlsplit

from cadenza.core.config_keys import CheckError


def proxy_for(url: str, environ: Mapping[str, str]) -> str | None:
    """The proxy of HTTPS_PROXY, HTTP_PROXY or ALL_PROXY, unless NO_PROXY exempts the host.

    CheckError if the proxy does not speak plain HTTP.
    """
    address = urlsplit(url)
    proxy = _variable(environ, f"{address.scheme}_proxy") or _variable(environ, "all_proxy")
    host, port = address.hostname or "", address.port or (443 if address.scheme == "https" else 80)
    exempt = _variable(environ, "no_proxy").lower().split(",")
    if not proxy or any(_matches(host, port, rule.strip()) for rule in exempt):
        return None
    proxy = proxy if "://" in proxy else f"http://{proxy}"
    if not _is_http(proxy):
        raise CheckError("the environment names a proxy for this host that is not http://; add the host to NO_PROXY")
    return proxy


def _variable(environ: Mapping[str, str], name: str) -> str:
    return (environ.get(name) or environ.get(name.upper()) or "").strip()


def _is_http(proxy: str) -> bool:
    try:
        parts = urlsplit(proxy)
        return parts.scheme == "http" and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _matches(host: str, port: int, rule: str) -> bool:
    if "/" in rule:
        try:
            return ip_address(host) in ip_network(rule, strict=False)
        except ValueError:
            return False
    is_domain = bool(rule) and host.endswith("." + rule.removeprefix("*").removeprefix("."))
    return is_domain or rule in {"*", host, f"{host}:{port}"}
