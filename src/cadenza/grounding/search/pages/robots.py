"""Whether a site's robots.txt lets us read a page, as RFC 9309 says.

A site without the file (4xx) allows everything. A site that does not answer, or answers with an error of its own,
allows nothing, and so does a file with more lines or rules than we read. Rules are cached for minutes. One file at a
time is parsed, in a thread: several threads would keep the event loop from the interpreter's lock.
"""

import asyncio
import re
from urllib.parse import unquote
from weakref import WeakValueDictionary

import msgspec
from protego import Protego

from cadenza.grounding.search.cache import ContentCache
from cadenza.grounding.search.pages.addresses import Target
from cadenza.grounding.search.pages.client import (
    NOTHING,
    BodyLimit,
    FetchLimits,
    Headers,
    PageClient,
    get_following,
)
from cadenza.grounding.search.records import FetchFailed

AGENT = "Cadenza"  # our name in a robots.txt
FILE_BYTES_MAX = 500 * 1024
LINES_MAX = 10_000  # that are not empty
RULES_CHARS_MAX = 64 * 1024  # for us; the parser takes up to a second for all that 500 KiB can hold
RULES_MAX = 500  # that may be about one page: the parser takes 12 µs for each
ALL_ALLOWED = ""
NONE_ALLOWED = "user-agent: *\ndisallow: /\n"

LINE_END = re.compile(r"[\r\n]+")
AGENT_LINE = re.compile(r"user[-\s]*agent\s*:?\s*([^/\s]*)", re.IGNORECASE)
RULE_LINE = re.compile(r"[a-z]{0,6}l[ao]w\b", re.IGNORECASE)  # allow and disallow, and how they are misspelled
GLOBAL_LINE = re.compile(r"site-?maps?\b|host\b", re.IGNORECASE)  # belongs to no group
SEPARATOR = "allow:"  # a rule without effect, which ends a list of agents
# How the pattern of a rule begins, as far as its characters stand for themselves.
BEGINNING = re.compile(r"[a-z]+:\s*(/(?!/)[a-zA-Z0-9_.~/=-]*)", re.IGNORECASE)

# Failures of the host, not of the file: the page would fail in the same way.
HOST_FAILURES = {"private", "port", "unresolved", "unreachable", "tls", "busy"}


class Robots:
    """The rules of sites."""

    def __init__(self, client: PageClient, limits: FetchLimits) -> None:
        self._client = client
        self._redirects_max = limits.redirects
        self._rules = ContentCache[str](asyncio.get_running_loop().time, limits.robots)
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._turn = asyncio.Lock()

    async def check(self, target: Target) -> None:
        """FetchFailed if the site does not let us read the page."""
        lock = self._locks.setdefault(target.origin, asyncio.Lock())
        async with lock:  # several pages of one site ask for its rules once
            rules = self._rules.get(target.origin)
            if rules is None:
                rules = await self._fetch_rules(target)
                self._rules.put(target.origin, rules, len(rules))
        if rules:
            async with self._turn:
                may_read = await asyncio.to_thread(is_allowed, rules, target)
            if not may_read:
                raise FetchFailed("robots")

    def clear(self) -> None:
        self._rules.clear()

    async def _fetch_rules(self, target: Target) -> str:
        file = msgspec.structs.replace(target, path="/robots.txt")
        try:
            _, response = await get_following(self._client, file, _admit, self._redirects_max)
        except FetchFailed as failure:
            if failure.reason in HOST_FAILURES:
                raise
            return NONE_ALLOWED
        if response.status == 200:
            async with self._turn:
                return await asyncio.to_thread(rules_for_us, response.body)
        return ALL_ALLOWED if response.status < 500 else NONE_ALLOWED


def _admit(status: int, _headers: Headers) -> BodyLimit:
    if status == 200:
        return BodyLimit(FILE_BYTES_MAX, truncates=True)
    if 400 <= status <= 599:
        return NOTHING
    raise FetchFailed("status")


def rules_for_us(file: bytes) -> str:
    """The lines of a robots.txt that concern us: the groups of our name and of `*`.

    The rest is left out because the parser's time grows with the number of agents times the number of rules.
    """
    kept = list[str]()
    is_in_agents = is_for_us = False
    lines = LINE_END.split(file.decode(errors="replace").removeprefix("\ufeff"), LINES_MAX)
    if len(lines) > LINES_MAX:
        return NONE_ALLOWED
    for line in lines:
        text = line.partition("#")[0].strip()
        if agent := AGENT_LINE.match(text):
            names_us = agent[1].lower() in {"*", AGENT.lower()}
            is_for_us = names_us or (is_in_agents and is_for_us)
            is_in_agents = True
            if names_us:
                kept.append(f"user-agent: {agent[1]}")
        elif (":" in text or RULE_LINE.match(text)) and not GLOBAL_LINE.match(text):
            is_in_agents = False
            if is_for_us:
                kept.append(text if RULE_LINE.match(text) else SEPARATOR)
    rules = "\n".join(kept)
    return rules if len(rules) <= RULES_CHARS_MAX else NONE_ALLOWED


def is_allowed(rules: str, target: Target) -> bool:
    """`rules` are those for us."""
    lines = lines_about(rules, unquote(target.path))
    return len(lines) <= RULES_MAX and Protego.parse("\n".join(lines)).can_fetch(target.url, AGENT)


def lines_about(rules: str, path: str) -> list[str]:
    """The lines without the rules that cannot match the path, in which nothing is escaped."""
    kept = list[str]()
    for line in rules.split("\n"):
        beginning = BEGINNING.match(line)
        if beginning is None or path.startswith(beginning[1]):
            kept.append(line)
        elif kept[-1] != SEPARATOR:
            kept.append(SEPARATOR)
    return kept
