"""One case of the audit: a request that carries a canary, or a function that puts it into its place.

A part that has places of its own for content names them in its module `cases`, as `AUDIT`.
"""

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from cadenza.parts.retention.canaries import TEXT, WORD, Canary, CanarySet, Template
from cadenza.parts.retention.client import JSON, CaseClient
from cadenza.parts.retention.config import PrivateConfig, Table
from cadenza.parts.retention.service import AuditedService
from cadenza.parts.retention.upstream import GOOD, AuditUpstream, UpstreamScript
from cadenza.store.store import Store

CHAT = "POST /v1/chat/completions"
FILLER = "You need not answer this. " * 4000  # a body of such a size is parsed in a child process
HELLO = {"role": "user", "content": "Hello."}
SCHEMA = {"type": "object", "properties": {WORD: {"type": "string", "description": TEXT}}}
Fields = dict[str, Any]
DELETED = "deleted"  # it may remain in files of Postgres until they are vacuumed or recycled
REACHED_S = 15.0  # for a request to reach the upstream, and for a stream to begin


class RetentionFixture(msgspec.Struct):
    """What the cases work with. A client is named after its key, or the reason why that is refused."""

    service: AuditedService
    upstream: AuditUpstream
    store: Store
    canaries: CanarySet
    email: str = ""
    password: str = ""
    clients: dict[str, CaseClient] = {}


class CaseStep(NamedTuple):
    """One request, with templates; {id} is that of the reply before."""

    request: str  # method and path
    body: Any = b""  # a template, or a function of the canary
    headers: Mapping[str, str] = JSON
    client: str = "key"
    script: UpstreamScript = GOOD


Case = list[CaseStep] | Callable[[RetentionFixture, Canary], Awaitable[int | None]]


async def send_case(case: Case, fixture: RetentionFixture, canary: Canary) -> int | None:
    """Put a canary into its place. The status of the last reply: 0 if there was none, None if it is no request."""
    fixture.upstream.play(canary)
    if not isinstance(case, list):
        return await case(fixture, canary)
    others, status = {"email": fixture.email, "password": fixture.password}, 0
    for step in case:
        fixture.upstream.play(canary, step.script)
        request, headers = canary.fill(step.request, **others), canary.fill(step.headers)
        body = step.body(canary) if callable(step.body) else canary.fill(step.body, **others)
        method, _, path = request.partition(" ")
        reply = await fixture.clients[step.client].send(method, path, body, headers)
        others["id"] = b"".join(re.findall(rb'"id": ?"([^"]+)"', reply.body)[:1]).decode()
        status = reply.status
    return status


def chat(content: Template = "Hello.", *before: Fields, **fields: Template) -> Fields:
    return {"model": "auto", "max_tokens": 16, "messages": [*before, {"role": "user", "content": content}], **fields}


def site(request: str, body: Template = b"", headers: Mapping[str, str] = JSON) -> CaseStep:
    return CaseStep(request, body, headers, "browser")


class PartAudit(msgspec.Struct, frozen=True):
    """What a part adds: its cases, where their canaries are stored by design, and the private form of its tables.

    Each of `chats`, requests of a protocol with bodies by the place, is sent whole and as a stream; the first body is
    plain, and that of "tool" has one.
    `prepare` is called with the accounts of the audit, before the service starts.
    `private` gets the user's tables of the part, what secrets and notes go to, and the address of the upstream.
    """

    cases: Mapping[str, Case] = {}
    kept: Mapping[str, set[str]] = {}
    chats: Mapping[str, tuple[str, Mapping[str, Fields]]] = {}
    private: Callable[[Table, PrivateConfig, str], Table] | None = None
    prepare: Callable[[RetentionFixture], Awaitable[None]] | None = None
