"""Whether a site's robots.txt lets us read a page, as RFC 9309 says.

A site without the file (4xx) allows everything. A site that does not answer, or answers with an error of its own,
allows nothing, and so does a file with more lines or rules than we read. Rules are cached for minutes. One file at a
time is parsed, in a thread: several threads would keep the event loop from the interpreter's lock.
"""

import asyncio
import re
from urllib.parse import quote
from weakref import WeakValueDictionary

import msgspec

from cadenza.parts.grounding.search.cache import ContentCache
from cadenza.parts.grounding.search.pages.addresses import UNQUOTED, Target
from cadenza.parts.grounding.search.pages.client import (
    NOTHING,
    BodyLimit,
    FetchLimits,
    Headers,
    PageClient,
    get_following,
)
from cadenza.parts.grounding.search.records import FetchFailed

AGENT = "cadenza"  # our name in a robots.txt, in lower case
FILE_BYTES_MAX = 500 * 1024
LINES_MAX = 10_000  # that are not empty
RULES_CHARS_MAX = 64 * 1024  # of the lines with rules for us: they are compared with a page in 4 ms
RULE_BYTES = 150  # of a rule that is kept, beside its pattern, about

LINE_END = re.compile(r"[\r\n]+")
AGENT_LINE = re.compile(r"user[-\s]*agent\s*:?\s*([^/\s]*)", re.IGNORECASE)
RULE_LINE = re.compile(r"([a-z]{0,6}l[ao]w)\b[\s:]*(.*)", re.IGNORECASE)  # allow and disallow, also misspelled
GLOBAL_LINE = re.compile(r"site-?maps?\b|host\b", re.IGNORECASE)  # belongs to no group
ESCAPED = re.compile(r"%([0-9a-fA-F]{2})")
UNRESERVED = re.compile(r"[A-Za-z0-9._~-]")

# Failures of the host, not of the file: the page would fail in the same way.
HOST_FAILURES = {"private", "port", "unresolved", "unreachable", "tls", "busy"}

Rule = tuple[str, bool]  # a pattern of paths, and whether it allows them
Rules = tuple[Rule, ...]
ALL_ALLOWED: Rules = ()
NONE_ALLOWED: Rules = (("/", False),)


class Robots:
    """The rules of sites."""

    def __init__(self, client: PageClient, limits: FetchLimits) -> None:
        self._client = client
        self._redirects_max = limits.redirects
        self._rules = ContentCache[Rules](asyncio.get_running_loop().time, limits.robots)
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._turn = asyncio.Lock()

    async def check(self, target: Target) -> None:
        """FetchFailed if the site does not let us read the page."""
        lock = self._locks.setdefault(target.origin, asyncio.Lock())
        async with lock:  # several pages of one site ask for its rules once
            rules = self._rules.get(target.origin)
            if rules is None:
                rules = await self._fetch_rules(target)
                self._rules.put(target.origin, rules, sum(RULE_BYTES + len(pattern) for pattern, _ in rules))
        if not is_allowed(rules, target.path):
            raise FetchFailed("robots")

    def clear(self) -> None:
        self._rules.clear()

    async def _fetch_rules(self, target: Target) -> Rules:
        file = msgspec.structs.replace(target, path="/robots.txt")
        try:
            _, response = await get_following(self._client, file, _admit, self._redirects_max)
        except FetchFailed as failure:
            if failure.reason in HOST_FAILURES:
                raise
            return NONE_ALLOWED
        if response.status == 200:
            async with self._turn:
                return await asyncio.to_thread(parse_rules, response.body)
        return ALL_ALLOWED if response.status < 500 else NONE_ALLOWED


def _admit(status: int, _headers: Headers) -> BodyLimit:
    if status == 200:
        return BodyLimit(FILE_BYTES_MAX, truncates=True)
    if 400 <= status <= 599:
        return NOTHING
    raise FetchFailed("status")


def parse_rules(file: bytes) -> Rules:
    """The rules of the groups with our name, or of those for everyone if there are none."""
    lines = LINE_END.split(file.decode(errors="replace").removeprefix("\ufeff"), LINES_MAX)
    if len(lines) > LINES_MAX:
        return NONE_ALLOWED
    groups: dict[str, list[Rule]] = {}
    agents, is_in_agents, left_chars = set[str](), False, RULES_CHARS_MAX
    for line in lines:
        text = line.partition("#")[0].strip()
        if agent := AGENT_LINE.match(text):
            agents = {*(agents if is_in_agents else ()), agent[1].lower()} & {AGENT, "*"}
            is_in_agents = True
            for name in agents:
                groups.setdefault(name, [])
        elif rule := RULE_LINE.match(text):
            is_in_agents = False
            left_chars -= len(text) if agents else 0
            if rule[2].startswith(("/", "*")):
                for name in agents:
                    groups[name].append((_unescaped(rule[2]), rule[1].lower() == "allow"))
        elif ":" in text and not GLOBAL_LINE.match(text):
            is_in_agents = False
    return tuple(groups.get(AGENT, groups.get("*", ()))) if left_chars >= 0 else NONE_ALLOWED


def is_allowed(rules: Rules, path: str) -> bool:
    """Of the rules that match, the one with the longest pattern counts; of two, the one that allows."""
    path = _unescaped(path)
    fitting = [(len(pattern), allows) for pattern, allows in rules if _matches(pattern, path)]
    return max(fitting, default=(0, True))[1]


def _matches(pattern: str, path: str) -> bool:
    """`*` stands for any characters, and `$` at the end for the end of the path."""
    first, *others = pattern.removesuffix("$").split("*")
    if not path.startswith(first):
        return False
    at = len(first)
    for part in others:
        found = path.find(part, at)
        if found < 0:
            return False
        at = found + len(part)
    return not pattern.endswith("$") or at == len(path) or (bool(others) and path.endswith(others[-1]))


def _unescaped(path: str) -> str:
    """Written in the one way in which paths can be compared: only what needs an escape has one, in capitals."""
    return ESCAPED.sub(_without_escape, quote(path, safe=UNQUOTED))


def _without_escape(found: re.Match[str]) -> str:
    character = chr(int(found[1], 16))
    return character if UNRESERVED.match(character) else found[0].upper()
