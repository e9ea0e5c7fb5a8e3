"""The proxy that the environment names for an address: HTTPS_PROXY, HTTP_PROXY or ALL_PROXY, less NO_PROXY."""

from collections.abc import Mapping
from ipaddress import ip_address, ip_network
from urllib.parse import urlsplit

from cadenza.config.checks import CheckError


def proxy_for(url: str, environ: Mapping[str, str]) -> str | None:
    """CheckError where the environment names a proxy of a kind that is not spoken here."""
    address = urlsplit(url)
    proxy = _variable(environ, f"{address.scheme}_proxy") or _variable(environ, "all_proxy")
    port = address.port or (443 if address.scheme == "https" else 80)
    if not proxy or _is_exempt(address.hostname or "", port, _variable(environ, "no_proxy")):
        return None
    proxy = proxy if "://" in proxy else f"http://{proxy}"
    if not _is_http(proxy):
        raise CheckError("the environment names a proxy for it that is not http://; set NO_PROXY for its host")
    return proxy


def _is_http(proxy: str) -> bool:
    try:
        parts = urlsplit(proxy)
        return parts.scheme == "http" and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _variable(environ: Mapping[str, str], name: str) -> str:
    return (environ.get(name) or environ.get(name.upper()) or "").strip()


def _is_exempt(host: str, port: int, no_proxy: str) -> bool:
    return any(_matches(host, port, rule.strip().lower()) for rule in no_proxy.split(","))


def _matches(host: str, port: int, rule: str) -> bool:
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
