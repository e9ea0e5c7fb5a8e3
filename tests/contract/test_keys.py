"""API keys over HTTP: where they are read, what they may do, and when they end."""

import re
from collections.abc import Callable

import pytest

from tests.loopback import LoopbackUpstream
from tests.raw_client import MESSAGES, RawClient
from tests.service import EMAIL, Service

CHAT = {"messages": MESSAGES}
ApiAs = Callable[[str | None], RawClient]


def test_new_key_is_printed_alone_and_works_at_once(service: Service, api_as: ApiAs) -> None:
    """`key create` prints only the key, and a running server accepts it on the next request."""
    printed = service.cli("key", "create", "--account", EMAIL).stdout
    assert re.fullmatch(r"sk-cdz-[0-9A-Za-z]{49}\n", printed)
    assert api_as(printed.strip()).get("/v1/models").status == 200


@pytest.mark.parametrize(
    ("scope", "may_chat", "may_list"), [("inference", True, False), ("models", False, True), ("usage", False, False)]
)
def test_scope_is_enforced(
    scoped_keys: dict[str, str],
    api_as: ApiAs,
    upstream: LoopbackUpstream,
    scope: str,
    may_chat: bool,
    may_list: bool,
) -> None:
    """A key may do what its scope grants; anything else is a 403."""
    scoped = api_as(scoped_keys[scope])
    attempts = [(scoped.post(CHAT), may_chat), (scoped.post({**CHAT, "stream": True}), may_chat)]
    attempts += [(scoped.get("/v1/models"), may_list), (scoped.get("/v1/models/forte"), may_list)]
    for reply, allowed in attempts:
        if allowed:
            assert reply.status == 200
        else:
            reply.error(403, "permission_error")
            assert reply.headers["x-should-retry"] == "false"
    assert len(upstream.requests) == (2 if may_chat else 0)


def test_revoked_key_is_refused_on_the_next_request(
    service: Service, api_as: ApiAs, upstream: LoopbackUpstream
) -> None:
    """A key that the command line revokes is refused by a running server on the next request."""
    key = service.create_key()
    holder = api_as(key)
    assert holder.post(CHAT).status == 200
    assert service.cli("key", "revoke", key[:12]).returncode == 0
    holder.post(CHAT).error(401, "authentication_error")
    holder.get("/v1/models").error(401, "authentication_error")
    assert len(upstream.requests) == 1
