"""Unknown paths and methods are refused in the error shape."""

import pytest

from tests.loopback import LoopbackUpstream
from tests.raw_client import MESSAGES, RawClient


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize(
    "path",
    [
        "/v1/",
        "/v1/nothing",
        "/v1/v1/models",
        "/v1/v1/chat/completions",
        "/v1/chat",
        "/v1/chat/completions/extra",
        "/v1/responses",
        "/v1//nothing",
        "/v1/%2e%2e/models",
        "/v1/" + "x" * 8000,
    ],
)
def test_unknown_path_is_404(api: RawClient, method: str, path: str) -> None:
    """An unknown path is a 404 in the error shape, not to be retried."""
    reply = api.request(method, path, b"{}" if method == "POST" else None)
    reply.error(404)
    assert reply.headers["x-should-retry"] == "false"


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("path", ["/chat/completions", "/models", "/models/forte", "/responses"])
def test_path_without_v1_is_explained(api: RawClient, method: str, path: str) -> None:
    """A client whose base address lacks /v1 is told so, in the error shape."""
    assert "must end in /v1" in api.request(method, path, b"{}" if method == "POST" else None).error(404)


def test_unknown_page_is_404(api: RawClient) -> None:
    """A path outside the API is a 404 in the error shape too, and a page with a wrong method a 405."""
    api.get("/nothing").error(404)
    reply = api.request("POST", "/healthz", b"{}")
    reply.error(405)
    assert reply.headers["allow"] == "GET, HEAD"


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/forte", "/v1/usage", "/healthz", "/health", "/"])
def test_head_is_answered_like_get(api: RawClient, path: str) -> None:
    """HEAD has the status and the length of GET, and no body."""
    reply = api.request("HEAD", path, None)
    assert (reply.status, reply.body) == (200, b"")
    assert int(reply.headers["content-length"]) > 0


@pytest.mark.parametrize("encoding", ["gzip", "br", "Deflate"])
def test_compressed_body_is_415(api: RawClient, encoding: str) -> None:
    """A compressed body is refused with the reason; `identity` is no compression."""
    reply = api.post({"messages": MESSAGES}, {"content-encoding": encoding})
    assert "content-encoding" in reply.error(415)


def test_identity_is_no_compression(api: RawClient, upstream: LoopbackUpstream) -> None:
    """A body with `content-encoding: identity` is read like any other."""
    assert api.post({"messages": MESSAGES}, {"content-encoding": "identity"}).status == 200


@pytest.mark.parametrize(
    ("path", "instead"),
    [
        ("/v1/embeddings", "another service for embeddings"),
        ("/v1/completions", "/v1/chat/completions"),
        ("/v1/responses", "LiteLLM"),
        ("/v1/responses/resp_1", "LiteLLM"),
        ("/v1/messages", "claude-code-router"),
        ("/v1/messages/count_tokens", "claude-code-router"),
        ("/v1//messages", "claude-code-router"),
    ],
)
def test_missing_endpoints_say_what_to_use_instead(api: RawClient, path: str, instead: str) -> None:
    """An endpoint of another API that this service lacks is reported as not implemented, with what to use."""
    message = api.request("POST", path, b"{}").error(404)
    assert "not implemented" in message
    assert "POST /v1/chat/completions" in message
    assert instead in message


@pytest.mark.parametrize("path", ["/v1//models", "//v1/models", "/v1///models/", "/v1//models//forte"])
def test_repeated_slashes_count_as_one(api: RawClient, upstream: LoopbackUpstream, path: str) -> None:
    """A client whose base address ends in a slash is served."""
    assert api.get(path).status == 200
    body = b'{"messages": [{"role": "user", "content": "hi"}]}'
    assert api.request("POST", "/v1//chat//completions", body).status == 200


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("POST", "/v1/models", "GET"),
        ("DELETE", "/v1/models", "GET"),
        ("POST", "/v1/models/forte", "GET"),
        ("DELETE", "/v1/models/forte", "GET"),
        ("GET", "/v1/chat/completions", "POST"),
        ("PUT", "/v1/chat/completions", "POST"),
        ("PATCH", "/v1/chat/completions/", "POST"),
    ],
)
def test_wrong_method_is_405(api: RawClient, method: str, path: str, allowed: str) -> None:
    """A known path with another method is a 405 that names the method it takes."""
    reply = api.request(method, path, b"{}" if method != "GET" else None)
    reply.error(405)
    assert allowed in [word.strip() for word in reply.headers["allow"].split(",")]
    assert method not in reply.headers["allow"]


def test_trailing_slash_is_the_same_path(api: RawClient, upstream: LoopbackUpstream) -> None:
    """A trailing slash changes nothing and is not redirected."""
    assert api.get("/v1/models/").json == api.get("/v1/models").json
    assert api.get("/v1/models/forte/").json == api.get("/v1/models/forte").json
    body = b'{"messages": [{"role": "user", "content": "hi"}]}'
    assert api.request("POST", "/v1/chat/completions/", body).status == 200


def test_query_is_ignored(api: RawClient, upstream: LoopbackUpstream) -> None:
    """A query changes nothing: some clients send an api-version."""
    assert api.get("/v1/models?api-version=2024-10-21").status == 200


def test_content_type_does_not_matter(api: RawClient, upstream: LoopbackUpstream) -> None:
    """A chat request is read as JSON whatever its content type."""
    for content_type in ("text/plain", "application/json; charset=utf-8", ""):
        assert api.post({"messages": MESSAGES}, {"content-type": content_type}).status == 200
