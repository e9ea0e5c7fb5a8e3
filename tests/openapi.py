"""The OpenAPI document of a running service, and the check that a reply is one that it describes."""

import http.client
import json
from collections.abc import Mapping
from typing import Any

from tests.schemas import Schema, check, read_events

METHODS = ("get", "put", "post", "delete", "options", "head", "patch", "trace")
NARROWING = ("anyOf", "oneOf")  # beside `properties`, these say more about the same fields
DONE = b"[DONE]"
EVENTS = "text/event-stream"


class Document:
    """The parsed document. Replies may have only the fields that it names, although it leaves room for more."""

    def __init__(self, value: dict[str, Any]) -> None:
        self.value = value
        self._components = closed(value["components"])

    @property
    def operations(self) -> set[tuple[str, str]]:
        """Method and path of each operation."""
        paths = self.value["paths"].items()
        return {(method.upper(), path) for path, item in paths for method in METHODS if method in item}

    def check_reply(self, operation: tuple[str, str], status: int, headers: Mapping[str, str], body: bytes) -> None:
        """The operation has this status, with this content type and these headers, and its schema accepts the body."""
        method, path = operation
        responses = self.value["paths"][path][method.lower()]["responses"]
        assert str(status) in responses, f"{method} {path} does not document {status}: {body[:500]!r}"
        response = self._resolved(responses[str(status)])
        if "content" not in response:
            assert body == b"", body[:500]
            return
        content_type = headers["content-type"].partition(";")[0]
        assert content_type in response["content"], f"{method} {path} does not document {content_type} for {status}"
        schema = {**closed(response["content"][content_type]["schema"]), "components": self._components}
        for value in contents(content_type, body):
            check(value, schema)
        for name in set(response.get("headers", {})) & set(headers):
            self._check_header(response["headers"][name], headers[name])

    def check_value(self, value: Any, schema: Schema) -> None:
        check(value, {**closed(schema), "components": self._components})

    def _check_header(self, described: dict[str, Any], text: str) -> None:
        schema = self._resolved(described)["schema"]
        check(int(text) if schema.get("type") == "integer" else text, schema)

    def _resolved(self, found: dict[str, Any]) -> dict[str, Any]:
        if "$ref" not in found:
            return found
        _, components, kind, name = found["$ref"].split("/")
        return dict(self.value[components][kind][name])


def read_document(port: int) -> Document:
    """As the service sends it."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("GET", "/openapi.json")
        return Document(json.loads(connection.getresponse().read()))
    finally:
        connection.close()


def contents(content_type: str, body: bytes) -> list[Any]:
    """The values that a body has: one, or one for each event of a stream. A stream ends with [DONE] or an error."""
    if content_type == EVENTS:
        *events, last = read_events(body)
        assert last == DONE or "error" in json.loads(last), last
        return [json.loads(event) for event in (events if last == DONE else [*events, last])]
    return [json.loads(body) if content_type == "application/json" else body.decode()]


def closed(schema: Any) -> Any:
    """The schema without room for fields that it does not name."""
    if isinstance(schema, list):
        return [closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if "properties" not in schema:
        return {name: closed(value) for name, value in schema.items()}
    found: Schema = {name: value if name in NARROWING else closed(value) for name, value in schema.items()}
    return {"additionalProperties": False, **found}
