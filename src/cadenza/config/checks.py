"""Which keys the file may have, and a check for the value of each.

A check returns the value that the settings will have, or raises CheckError with a sentence that follows the key.
No sentence repeats an address, a key or anything else that may contain a secret.
"""

import json
import re
from collections.abc import Callable, Collection, Mapping
from datetime import date, time
from difflib import get_close_matches
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Any
from urllib.parse import urlsplit

from cadenza.core.chat import SAMPLING
from cadenza.core.documents import RATE_SCALE
from cadenza.core.money import parse_dollars, parse_price
from cadenza.core.records import AUTO, CLASSES, CONTEXT_TOKENS_MAX, OUTPUT_TOKENS_MAX, RESERVED_CLASS, Timeouts
from cadenza.core.retention import AUDIT_EVENT_DAYS_MIN, SESSION_DAYS_MAX, USAGE_DAYS_MIN
from cadenza.upstreams.dialects import DIALECTS

Table = dict[str, Any]
Check = Callable[[Any], Any]
# name -> a Check, a nested table's Keys, (Check, Keys) of a value or a table, [Keys] of an array of tables, or why the
# key is refused
Keys = dict[str, Any]

RETENTION_RULE = 'must be exactly "zero": the service starts only if every provider has zero data retention'
LITERAL_KEY = "a key must not be in this file; name a variable with api_key_env or a file with api_key_file"
NETWORKS_RULE = 'must be an array of addresses and networks, like ["127.0.0.1", "10.0.0.0/8"]'
FIRST_ADDRESS = "must give a network by its first address"
LITERAL_TOKEN = "a token must not be in this file; name a variable with metrics_token_env"  # noqa: S105 a sentence
LITERAL_PASSWORD = "a password must not be in this file; name a variable with password_env"  # noqa: S105 a sentence
LITERAL_SECRET = "a secret must not be in this file; name a variable with secret_key_env and webhook_secret_env"  # noqa: S105 a sentence
LITERAL_SITE_SECRET = "a secret must not be in this file; name a variable with secret_key_env"  # noqa: S105 a sentence
LITERAL_SEARCH_KEY = "a key must not be in this file; name a variable with api_key_env"
NUMBER_MAX = 1_000_000_000
PRIVATE_NAMES = (".localhost", ".local", ".internal")
FIXED_FIELDS = frozenset({"model", "messages", "stream", "tools"})  # of a request; no route adds or leaves them out
FIELD_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}", re.ASCII)
TAG = re.compile(r"[a-z0-9_-]{1,40}")
# Fields of a request that no route passes on, by the reason.
READ_HERE = {"model", "messages", "stream", "stream_options", "usage", *SAMPLING}
READ_HERE |= {"tools", "tool_choice", "parallel_tool_calls"}
OTHER_NAMES = {"functions", "function_call", "input", "prompt"}  # of what the service reads
MORE_TOKENS = {"max_tokens", "max_completion_tokens", "max_output_tokens", "max_new_tokens", "n_predict", "num_predict"}
MORE_REPLIES = {"n", "best_of", "logprobs", "top_logprobs", "prompt_logprobs", "n_probs", "modalities", "audio", "echo"}
KEPT_UPSTREAM = {"store"}
CONTINUATION = {"continue_final_message", "add_generation_prompt"}
OWN_FIELDS = READ_HERE | OTHER_NAMES | MORE_TOKENS | MORE_REPLIES | KEPT_UPSTREAM | CONTINUATION
TYPE_NAMES = {str: "a string", bool: "a boolean", int: "a whole number", float: "a number with decimals"}
TYPE_NAMES |= {list: "an array", dict: "a table", date: "a date or a time", time: "a date or a time"}


class CheckError(ValueError):
    """A value that cannot be used. The text says what the value must be."""


def must_be(rule: str, fits: Callable[[Any], object], *types: type) -> Check:
    """A check for a value of one of these types; a boolean is not a number."""

    def check(value: object) -> object:
        if type(value) not in types:
            raise CheckError(f"must be {rule}, not {next(TYPE_NAMES[t] for t in TYPE_NAMES if isinstance(value, t))}")
        if not fits(value):
            raise CheckError(f"must be {rule}" if isinstance(value, str) else f"must be {rule}, not {value}")
        return value

    return check


def integer(low: int, high: int = NUMBER_MAX) -> Check:
    return must_be(f"a whole number from {low:,} to {high:,}", lambda value: low <= value <= high, int)


def one_of(*words: str) -> Check:
    def check(value: object) -> object:
        if text(value) not in words:
            near = find_near(str(value), words)
            *others, last = map(_quote, words)
            raise CheckError(
                f"must be {', '.join(others)} or {last}" + (f"; did you mean {_quote(near)}?" if near else "")
            )
        return value

    return check


def matching(pattern: str, rule: str) -> Check:
    def check(value: object) -> str:
        if not isinstance(value, str) or not re.fullmatch(pattern, value):
            raise CheckError(rule)
        return value

    return check


text = must_be("a non-empty string without null characters", lambda value: value.strip() and "\0" not in value, str)
boolean = must_be("true or false", lambda _: True, bool)
positive = must_be(f"a number above 0 and up to {NUMBER_MAX:,}", lambda value: 0 < value <= NUMBER_MAX, int, float)
search_timeout = must_be("a number above 0 and up to 60", lambda value: 0 < value <= 60, int, float)
table = must_be("a table", lambda _: True, dict)
search_switch = must_be("true, false, or a table with an engine", lambda _: True, bool)


def tables(value: object) -> list[Table]:
    if isinstance(value, dict):
        raise CheckError("must be an array of tables: write its header in double brackets")
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise CheckError("must be an array of tables")
    return value


def exact(parse: Callable[[str], int]) -> Check:
    """A decimal amount as nano-dollars. TOML's floats would lose digits."""

    def check(value: object) -> int:
        if isinstance(value, float):
            raise CheckError(f'must be quoted, so that it stays exact: "{value}"')
        return parse(str(value) if type(value) is int else text(value))

    return check


def tags(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(tag, str) and TAG.fullmatch(tag) for tag in value):
        raise CheckError('must be an array of tags of a suite, like ["tools", "json"]')
    return tuple(value)


price = exact(parse_price)  # dollars per million tokens -> nano-dollars per token
dollars = exact(parse_dollars)


def address_like(example: str, key_setting: str = "api_key_env") -> Check:
    def check(value: object) -> str:
        try:
            parts = urlsplit(url := str(text(value)))
            is_web = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            is_web = False
        if not is_web or re.search(r"\s", url):
            raise CheckError(f"must be an http or https address, like {_quote(example)}")
        if "@" in parts.netloc or "?" in url or "#" in url:
            raise CheckError(f"must not have a user name, password, query or fragment; for the key use {key_setting}")
        return url.rstrip("/")

    return check


def is_private(url: str) -> bool:
    """Whether the host is this machine or on a private network, as far as its name or address tells."""
    host = urlsplit(url).hostname or ""
    try:
        address = ip_address(host)
    except ValueError:
        return "." not in host or host.endswith(PRIVATE_NAMES)
    return address.is_private or address.is_loopback or address.is_link_local


def field_names(value: object) -> tuple[str, ...]:
    """Fields of a request that are left out."""
    if not isinstance(value, list) or not all(isinstance(name, str) and name for name in value):
        raise CheckError('must be an array of field names, like ["seed"]')
    return tuple(map(_changeable, value))


def passed_names(value: object) -> tuple[str, ...]:
    """Fields that the service does not know and that a route passes on."""
    if not isinstance(value, list) or not all(isinstance(name, str) and FIELD_NAME.fullmatch(name) for name in value):
        raise CheckError('must be an array of field names, like ["top_k"]')
    for name in value:
        if name in OWN_FIELDS:
            raise CheckError(f"cannot name {_quote(name)}: the service decides about it")
    return tuple(dict.fromkeys(value))


def json_fields(value: object) -> str:
    """Further fields of a request, as a JSON object."""
    for name in table(value):
        _changeable(name)
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        raise CheckError("must be values that JSON has: no dates, times, nan or inf") from None


def _changeable(name: str) -> str:
    if name in FIXED_FIELDS:
        raise CheckError(f"cannot change {_quote(name)}")
    return name


def networks(value: object) -> tuple[str, ...]:
    """Addresses and networks, each in its one form."""
    try:
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise ValueError
        return tuple(str(_network(item.strip())) for item in value)
    except CheckError:
        raise
    except ValueError:
        raise CheckError(NETWORKS_RULE) from None


def _network(item: str) -> IPv4Network | IPv6Network:
    """An IPv4 address that is mapped into IPv6 is the IPv4 address."""
    try:
        network = ip_network(item)
    except ValueError:
        network, host = ip_network(item, strict=False), item.partition("/")[0]
        raise CheckError(f"{FIRST_ADDRESS}; did you mean {_quote(str(network))}, or {_quote(host)} alone?") from None
    mapped = network.network_address.ipv4_mapped if isinstance(network, IPv6Network) else None
    return ip_network(mapped) if mapped and network.num_addresses == 1 else network


def suggest(word: str, known: Collection[str]) -> str:
    """The nearest known name or, if none is near, all of them."""
    near = find_near(word, known)
    return f"did you mean {_quote(near)}?" if near else f"known names: {', '.join(known) or 'none'}"


def find_near(word: str, known: Collection[str]) -> str | None:
    return next(iter(get_close_matches(word.lower(), known, n=1)), None)


def _quote(word: str) -> str:
    return f'"{word}"'


def _by_class(keys: Keys) -> Keys:
    return dict.fromkeys(CLASSES, keys) | {
        RESERVED_CLASS: "this class is reserved and cannot be configured",
        AUTO: "this is not a class: it stands for the class that the account prefers",
    }


VARIABLE_NAME = matching(
    "[A-Z_][A-Z0-9_]{0,99}",
    "must be the name of an environment variable, in capitals like ACME_API_KEY, and not the key itself",
)
API_VERSION = matching("[A-Za-z0-9.-]{1,40}", 'must be a version like "2024-10-21"')
sender = matching(
    r"[^<>\r\n]* ?<[!-?A-~]+@[A-Za-z0-9.-]+>|[!-?A-~]+@[A-Za-z0-9.-]+",
    'must be an e-mail address, like "Cadenza <cadenza@example.org>"',
)
STORE_URL = matching(
    r"sqlite:///(?=.*[^/])[^?\0]+(?<!/)(?<!:memory:)|postgresql://[^\0]+",
    'must be "sqlite:///path/of/a/file.db" or "postgresql://user@host/database"',
)

SHARED_RULE = 'must be "memory://", "valkey://host:6379/0", "valkeys://…" with TLS, or "unix:///path/of/a.sock?db=0"'
SHARED_SCHEMES = ("valkey", "valkeys", "redis", "rediss")


def shared_url(value: object) -> str:
    """A host and a database, or the path of a Unix socket. User and password may stand before the host."""
    given: str = text(value)
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
    return given


def percentage(value: object) -> int:
    """In thousandths of a percent."""
    found = re.fullmatch(r"([0-9]{1,2})(?:\.([0-9]{1,3}))?", value) if isinstance(value, str) else None
    if not found:
        raise CheckError('must be a percentage from 0 to 99 in quotes, like "19" or "8.875"')
    return int(found[1]) * RATE_SCALE + int((found[2] or "").ljust(3, "0"))


PRICE: Keys = dict.fromkeys(("input", "output", "cached_input"), price)
CHARACTER: Keys = {"text": text, "file": text}
ROUTE: Keys = {
    "provider": text,
    "model": text,
    "context_tokens": integer(1, CONTEXT_TOKENS_MAX),
    "max_output_tokens": integer(1, OUTPUT_TOKENS_MAX),
    "order": integer(0),
    "weight": integer(1),
    "continue": boolean,
    "system": one_of("one", "each"),
    "reasoning": one_of("pass", "drop"),
    "always_send_max_tokens": boolean,
    "max_tokens_field": one_of("max_tokens", "max_completion_tokens"),
    "vision": boolean,
    "audio": boolean,
    "files": boolean,
    "omit": field_names,
    "pass": passed_names,
    "fields": json_fields,
    "retention": matching("zero", 'must be exactly "zero"'),
    "by": one_of("contract", "api"),
    "timeouts": dict.fromkeys(Timeouts.__struct_fields__, positive),
    **dict.fromkeys(("cost_input", "cost_output", "cost_cached"), price),
}
GATE: Keys = {
    "min_score": must_be("a number from 0 to 1", lambda value: 0 <= value <= 1, int, float),
    "max_losses": integer(0),
    "max_cost_ratio": positive,
    "max_p95_ratio": positive,
    "must_pass": tags,
    "max_age_days": positive,
    "suite": text,
}
WATCH: Keys = {"every_hours": positive, "budget": dollars}
CLASS: Keys = {
    "routes": [ROUTE],
    "candidates": [{name: check for name, check in ROUTE.items() if name not in ("order", "weight")}],
    "character": CHARACTER,
    "search_decision": one_of("rules", "model"),
    "gate": GATE,
    "watch": WATCH,
}
PROVIDER: Keys = {"kind": one_of("openai", "embedded"), "retention": matching("zero", RETENTION_RULE)}
PROVIDER |= dict.fromkeys(("api_key", "key", "token"), LITERAL_KEY)
OPENAI: Keys = {"base_url": address_like("https://host/v1"), "api_key_env": VARIABLE_NAME, "api_key_file": text}
OPENAI |= {"dialect": one_of(*DIALECTS), "api_version": API_VERSION, "insecure": boolean}
EMBEDDED: Keys = {"model_path": text}
ANY_PROVIDER: Keys = PROVIDER | OPENAI | EMBEDDED
PROVIDER_OF_KIND: Mapping[str, Keys] = {
    "openai": ANY_PROVIDER | dict.fromkeys(EMBEDDED, 'only for a provider of kind = "embedded"'),
    "embedded": ANY_PROVIDER | dict.fromkeys(OPENAI, 'only for a provider of kind = "openai"'),
}
SERVER: Keys = {"host": text, "port": integer(0, 65_535), "workers": integer(1, 64), "drain_s": positive}
SERVER |= {"trusted_proxies": networks, "metrics_token_env": VARIABLE_NAME, "metrics_token": LITERAL_TOKEN}
OBSERVE: Keys = {"otlp_url": address_like("http://127.0.0.1:4318", "headers_env"), "headers_env": VARIABLE_NAME}
OBSERVE |= {"sample": must_be("a number from 0 to 1", lambda value: 0 <= value <= 1, int, float)}
LIMITS: Keys = {"requests_per_second": positive, "burst": integer(1), "concurrency": integer(1)}
LIMITS |= {"revoked_streams": one_of("end", "finish")}
PLATFORM: Keys = {
    "base_url": address_like("https://chat.example.org"),
    "sign_up": one_of("closed", "invite", "open"),
    "opening_credit": dollars,
    "opening_credits_per_hour": integer(1, 1_000_000),
    "secret_key_env": VARIABLE_NAME,
    "secret_key": LITERAL_SITE_SECRET,
}
MAIL: Keys = {"host": text, "port": integer(1, 65_535), "security": one_of("starttls", "tls", "none")}
MAIL |= {"username": text, "password_env": VARIABLE_NAME, "password": LITERAL_PASSWORD, "sender": sender}
STRIPE: Keys = {
    "secret_key_env": VARIABLE_NAME,
    "webhook_secret_env": VARIABLE_NAME,
    "api_url": address_like("https://api.stripe.com"),
}
STRIPE |= dict.fromkeys(("secret_key", "webhook_secret"), LITERAL_SECRET)
BILLING: Keys = {
    "seller": text,
    "address": text,
    "tax_id": text,
    "note": text,
    "tax_label": text,
    "tax_rate": percentage,
}
BILLING |= {"number_prefix": matching("[A-Z0-9-]{1,20}", 'must have up to 20 capitals, digits and hyphens, like "EX-"')}
SEARCH: Keys = {"engine": one_of("searxng", "brave", "tavily", "local"), "url": address_like("http://127.0.0.1:8888")}
SEARCH |= {"max_results": integer(1, 20), "timeout_s": search_timeout, "index": text, "allow_networks": networks}
SEARCH |= {"api_key_env": VARIABLE_NAME, "price": dollars, "searches_per_day": integer(1, 1_000_000)}
SEARCH |= {"api_key": LITERAL_SEARCH_KEY}
GROUNDING: Keys = {"attachments": boolean, "memory": boolean, "search": (search_switch, SEARCH)}
RETENTION: Keys = {
    "session_days": integer(1, SESSION_DAYS_MAX),
    "session_idle_days": integer(1, SESSION_DAYS_MAX),
    "audit_event_days": integer(AUDIT_EVENT_DAYS_MIN, 36_500),
    "usage_days": integer(USAGE_DAYS_MIN, 36_500),
    "search_result_s": integer(0, 3600),
    "page_s": integer(0, 3600),
}
SECTIONS: Keys = {
    "server": SERVER,
    "store": {"url": STORE_URL, "region": text},
    "shared_state": {"url": shared_url},
    "limits": LIMITS,
    "character": CHARACTER,
    "prices": _by_class(PRICE),
    "providers": {},  # by name: the keys of each depend on its kind
    "classes": _by_class(CLASS),
    "grounding": GROUNDING,
    "platform": PLATFORM,
    "mail": MAIL,
    "payments": {"stripe": STRIPE},
    "billing": BILLING,
    "observe": OBSERVE,
    "retention": RETENTION,
}
NOT_BOTH = (("text", "file"), ("api_key_env", "api_key_file"))
