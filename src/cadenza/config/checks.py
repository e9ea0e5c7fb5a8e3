"""What values of the config are: addresses, networks, names of variables and of fields of a request."""

import json
import re
from ipaddress import IPv6Network, ip_address, ip_network
from typing import Any
from urllib.parse import urlsplit

from cadenza.core.chat import SAMPLING
from cadenza.core.config_keys import TEXT, CheckError, ValueCheck, list_of, matching, type_name
from cadenza.core.records import AUTO, CLASSES

PRIVATE_NAMES = (".localhost", ".local", ".internal")
FIXED_FIELDS = frozenset({"model", "messages", "stream", "tools"})  # of a request; no route adds or leaves them out
ALIAS = re.compile(r"[A-Za-z0-9._:/@*-]{1,128}", re.ASCII)
ALIASED = (AUTO, *CLASSES)
FIELD_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}", re.ASCII)
# Fields of a request that no route passes on, by the reason.
READ_HERE = {"model", "messages", "stream", "stream_options", "usage", *SAMPLING}
READ_HERE |= {"tools", "tool_choice", "parallel_tool_calls"}
OTHER_NAMES = {"functions", "function_call", "input", "prompt"}  # of what the service reads
MORE_TOKENS = {"max_tokens", "max_completion_tokens", "max_output_tokens", "max_new_tokens", "n_predict", "num_predict"}
MORE_REPLIES = {"n", "best_of", "logprobs", "top_logprobs", "prompt_logprobs", "n_probs", "modalities", "audio", "echo"}
KEPT_UPSTREAM = {"store"}
CONTINUATION = {"continue_final_message", "add_generation_prompt"}
OWN_FIELDS = READ_HERE | OTHER_NAMES | MORE_TOKENS | MORE_REPLIES | KEPT_UPSTREAM | CONTINUATION
SHARED_RULE = 'must be "memory://", "valkey://host:6379/0", "valkeys://…" with TLS, or "unix:///path/of/a.sock?db=0"'
SHARED_SCHEMES = ("valkey", "valkeys", "redis", "rediss")


class Secret(str):
    """A string whose repr does not show it."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "***"


def zero(sentence: str) -> ValueCheck:
    """The word "zero" and no other."""

    def read(value: object) -> object:
        if value != "zero":
            raise CheckError(sentence)
        return value

    return ValueCheck(sentence.removeprefix("must be "), read)


def read_table(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise CheckError(f"must be a table, not {type_name(value)}")
    return value


def read_address(value: object) -> str:
    try:
        parts = urlsplit(url := str(TEXT.read(value)))
        is_web = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_web = False
    if not is_web or re.search(r"\s", url):
        raise CheckError('must be an http or https address, like "https://host/v1"')
    if "@" in parts.netloc or "?" in url or "#" in url:
        raise CheckError("must not have a user name, password, query or fragment; a key comes from the environment")
    return url.rstrip("/")


def is_private(url: str) -> bool:
    """Whether the host is this machine or on a private network, as far as its name or address tells."""
    host = urlsplit(url).hostname or ""
    try:
        address = ip_address(host)
    except ValueError:
        return "." not in host or host.endswith(PRIVATE_NAMES)
    return address.is_private or address.is_loopback or address.is_link_local


def read_omitted(name: str) -> str:
    """A field of a request that is left out."""
    if not name:
        raise ValueError
    if name in FIXED_FIELDS:
        raise CheckError(f'cannot change "{name}"')
    return name


def read_passed(name: str) -> str:
    """A field that the service does not know and that a route passes on."""
    if not FIELD_NAME.fullmatch(name):
        raise ValueError
    if name in OWN_FIELDS:
        raise CheckError(f'cannot name "{name}": the service decides about it')
    return name


def read_json_fields(value: object) -> str:
    """Further fields of a request, as a JSON object."""
    for name in read_table(value):
        read_omitted(name)
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        raise CheckError("must be values that JSON has: no dates, times, nan or inf") from None


def read_aliases(value: object) -> dict[str, str]:
    """Model names, each with the class that serves it."""
    table = read_table(value)
    for name, class_id in table.items():
        if not ALIAS.fullmatch(name):
            raise CheckError(f'"{name}" cannot be an alias: a model name has letters, digits and ._:/@-, and * for any')
        if name in ALIASED:
            raise CheckError(f'"{name}" is the name of a class')
        if class_id not in ALIASED:
            raise CheckError(f'"{name}" must stand for {", ".join(ALIASED[:-1])} or {ALIASED[-1]}')
    return table


def read_network(item: str) -> str:
    """An address or a network in its one form. An IPv4 address that is mapped into IPv6 is the IPv4 address."""
    item = item.strip()
    try:
        network = ip_network(item)
    except ValueError:
        network, host = ip_network(item, strict=False), item.partition("/")[0]
        raise CheckError(
            f'must give a network by its first address; did you mean "{network}", or "{host}" alone?'
        ) from None
    mapped = network.network_address.ipv4_mapped if isinstance(network, IPv6Network) else None
    return str(ip_network(mapped) if mapped and network.num_addresses == 1 else network)


def read_shared_url(value: object) -> Secret:
    """A host and a database, or the path of a Unix socket. User and password may stand before the host."""
    given = str(TEXT.read(value))
    try:
        parts = urlsplit(given)
        _ = parts.port
    except ValueError:
        raise CheckError(SHARED_RULE) from None
    is_socket = parts.scheme == "unix" and len(parts.path) > 1 and re.fullmatch(r"(db=\d+)?", parts.query)
    is_host = parts.scheme in SHARED_SCHEMES and parts.hostname and re.fullmatch(r"(/\d*)?", parts.path)
    if given != "memory://" and not is_socket and not (is_host and not parts.query):
        raise CheckError(SHARED_RULE)
    if parts.fragment or (parts.username and not parts.password):
        raise CheckError(SHARED_RULE)
    return Secret(given)


ADDRESS = ValueCheck('an http or https address, like "https://host/v1"', read_address)
NETWORKS = list_of('addresses and networks, like ["127.0.0.1", "10.0.0.0/8"]', read_network)
FIELD_NAMES = list_of('field names, like ["seed"]', read_omitted)
PASSED_NAMES = list_of('field names, like ["top_k"]', read_passed)
JSON_FIELDS = ValueCheck("a table of values that JSON has", read_json_fields)
ALIASES = ValueCheck('a table of names and classes, like { "gpt-*" = "forte" }', read_aliases)
SHARED_URL = ValueCheck(SHARED_RULE.removeprefix("must be "), read_shared_url)
VARIABLE_NAME = matching(
    "[A-Z_][A-Z0-9_]{0,99}",
    "the name of an environment variable, in capitals like ACME_API_KEY, and not the key itself",
)
VERSION = matching("[A-Za-z0-9.-]{1,40}", 'a version like "2024-10-21"')
SENDER = matching(
    r"[^<>\r\n]* ?<[!-?A-~]+@[A-Za-z0-9.-]+>|[!-?A-~]+@[A-Za-z0-9.-]+",
    'an e-mail address, like "Cadenza <cadenza@example.org>"',
)
STORE_URL = matching(
    r"sqlite:///(?=.*[^/])[^?\0]+(?<!/)(?<!:memory:)|postgresql://[^\0]+",
    '"sqlite:///path/of/a/file.db" or "postgresql://user@host/database"',
)
