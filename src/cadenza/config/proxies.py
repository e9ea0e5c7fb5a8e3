"""The proxy that the environment names for an address: HTTPS_PROXY, HTTP_PROXY or ALL_PROXY, less NO_PROXY."""

from collections.abc import Mapping
from ipaddress import ip_address, ip_network
from urllib.parse import urlsplit

from cadenza.config.checks import CheckError


def proxy_for(url: str, environ: Mapping[str, str]) -> str | None:
    """CheckError where the environment names a proxy of a kind that is not spoken here."""
    address = urlsplit(url)
    proxy = _variable(environ, f"{address.scheme}_proxy") or _variable(environ, "all_proxy")
    if not proxy or _is_exempt(address.hostname or "", address.port, _variable(environ, "no_proxy")):
        return None
    proxy = proxy if "://" in proxy else f"http://{proxy}"
    if urlsplit(proxy).scheme != "http" or not urlsplit(proxy).hostname:
        raise CheckError("the environment names a proxy for it that is not http://; set NO_PROXY for its host")
    return proxy


def _variable(environ: Mapping[str, str], name: str) -> str:
    return (environ.get(name) or environ.get(name.upper()) or "").strip()


def _is_exempt(host: str, port: int | None, no_proxy: str) -> bool:
    return any(_matches(host, port, rule.strip().lower()) for rule in no_proxy.split(","))


def _matches(host: str, port: int | None, rule: str) -> bool:
    if not rule:
        return False
    if rule == "*" or rule in {host, f"{host}:{port}"}:
        return True
    if "/" in rule:
        try:
            return ip_address(host) in ip_network(rule, strict=False)
        except ValueError:
            return False
    return host.endswith("." + rule.removeprefix("*").removeprefix("."))
