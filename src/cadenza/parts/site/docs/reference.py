"""The OpenAPI document as it is sent, and the reference in /docs, which is made from it and kept as HTML.

Both are made when the site is built; only the URL of the service is filled in for a request.
"""

import gzip
import re
from functools import lru_cache
from typing import Any

import msgspec
from markupsafe import Markup, escape

from cadenza.parts.site.docs.examples import BASE, EXAMPLES, STREAM, Example
from cadenza.parts.site.docs.schema_text import FieldText, SchemaText, describe_schema, fields_of, in_words, kind_of
from cadenza.parts.site.render import Renderer

METHODS = ("get", "post", "put", "patch", "delete")
PLATFORM = "/platform/api/"
REFERENCE = re.compile(r'"#/components/schemas/([\w.-]+)"')
JSON = "application/json"
BASE_URL = "{base_url}"  # placeholder for the address of the service, as the client reached it
ADDRESSES = 8  # whose compressed documents are kept
LEVEL = 2  # of the compression: a client may name any address, and the usual 6 takes 3 times as long for 16% less


class ApiDocument:
    """The document, and its bytes with the URL of the service as its server."""

    def __init__(self, value: dict[str, Any]) -> None:
        self.value = value
        self._content = msgspec.json.encode(value)
        self.compressed = lru_cache(ADDRESSES)(self._compressed)

    def content(self, base_url: str) -> bytes:
        return self._content.replace(msgspec.json.encode(BASE_URL), msgspec.json.encode(base_url))

    def _compressed(self, base_url: str) -> bytes:
        return gzip.compress(self.content(base_url), LEVEL, mtime=0)


class OperationText(msgspec.Struct, frozen=True):
    """An operation in words."""

    id: str
    method: str
    path: str
    summary: str
    text: Markup
    parameters: list[FieldText]
    body: str
    body_fields: list[FieldText]
    reply: Markup
    reply_example: str
    request_example: str
    stream_example: str
    example: Example | None
    errors: list[str]  # the statuses that are not success


class TagText(msgspec.Struct, frozen=True):
    """Operations of one kind."""

    id: str
    name: str
    operations: list[OperationText]


class Reference:
    """The reference as HTML: of the API, and of each group of the platform API.

    `operations` are those that the console offers.
    """

    def __init__(self, document: ApiDocument, renderer: Renderer) -> None:
        self._document = document.value
        tags = [self._tag(tag) for tag in document.value["tags"]]
        self.api_tags = [tag for tag in tags if not _is_platform(tag)]
        self.platform_tags = [tag for tag in tags if _is_platform(tag)]
        self.operations = [one for tag in self.api_tags for one in tag.operations if one.path.startswith("/v1/")]
        self._api = self._render(renderer, self.api_tags)
        self._platform = {tag.name: self._render(renderer, [tag]) for tag in self.platform_tags}

    def api(self, base_url: str) -> Markup:
        return Markup(self._api.replace(BASE, str(escape(base_url))))  # noqa: S704 our own template, and escaped

    def platform(self, group: str) -> Markup | None:
        html = self._platform.get(group)
        return None if html is None else Markup(html)  # noqa: S704 our own template

    def _render(self, renderer: Renderer, tags: list[TagText]) -> str:
        return renderer.part("docs/reference.html", {"tags": tags, "schemas": self._schemas_of(tags)})

    def _tag(self, tag: dict[str, str]) -> TagText:
        name = tag["name"].removeprefix("platform: ")
        operations = [
            self._operation(path, method, item[method])
            for path, item in self._document["paths"].items()
            for method in METHODS
            if method in item and item[method]["tags"] == [tag["name"]]
        ]
        return TagText("tag-" + re.sub(r"\W+", "-", name), name, operations)

    def _operation(self, path: str, method: str, one: dict[str, Any]) -> OperationText:
        sent = _sent(one)
        body = sent.get("schema", {})
        success = next(reply for status, reply in one["responses"].items() if status.startswith("2"))
        content = success.get("content", {})
        return OperationText(
            id=one["operationId"],
            method=method.upper(),
            path=path,
            summary=one["summary"],
            text=in_words(one.get("description", "")),
            parameters=[self._parameter(parameter) for parameter in one.get("parameters", ())],
            body=_name_of(body) if body else "",
            body_fields=fields_of(self._resolved(body)),
            reply=Markup(" or ").join(_reply_kind(kind, reply["schema"]) for kind, reply in content.items()),
            reply_example=_pretty(content.get(JSON, {}).get("example")),
            request_example=_pretty(sent.get("example")),
            stream_example=STREAM if "text/event-stream" in content and path.startswith("/v1/") else "",
            example=EXAMPLES.get(one["operationId"]),
            errors=[status for status in one["responses"] if not status.startswith("2")],
        )

    def _parameter(self, given: dict[str, Any]) -> FieldText:
        found = self._resolved(given)
        text = f"{found.get('description', '')} In the {found['in']}.".strip()
        return FieldText(found["name"], kind_of(found["schema"]), found.get("required", False), in_words(text))

    def _resolved(self, found: dict[str, Any]) -> dict[str, Any]:
        while "$ref" in found:
            _, components, kind, name = found["$ref"].split("/")
            found = self._document[components][kind][name]
        return found

    def _schemas_of(self, tags: list[TagText]) -> list[SchemaText]:
        """The schemas that these operations use, in the order of the document. Bodies are shown with the operation."""
        paths = {(one.path, one.method.lower()) for tag in tags for one in tag.operations}
        named = self._document["components"]["schemas"]
        operations = [self._document["paths"][path][method] for path, method in paths]
        waiting = [self._resolved(reply) for one in operations for reply in one["responses"].values()]
        waiting += [self._resolved(given) for one in operations for given in one.get("parameters", ())]
        waiting += [self._resolved(_sent(one).get("schema", {})) for one in operations]
        used: set[str] = set()
        while waiting:
            new = set(REFERENCE.findall(msgspec.json.encode(waiting).decode())) - used
            used |= new
            waiting = [named[name] for name in new]
        return [describe_schema(name, schema) for name, schema in named.items() if name in used]


def _is_platform(tag: TagText) -> bool:
    return any(one.path.startswith(PLATFORM) for one in tag.operations)


def _sent(operation: dict[str, Any]) -> dict[str, Any]:
    """What the operation says about its body."""
    found: dict[str, Any] = operation.get("requestBody", {}).get("content", {}).get(JSON, {})
    return found


def _name_of(schema: dict[str, Any]) -> str:
    return str(schema.get("$ref", "")).rpartition("/")[2] or "object"


def _reply_kind(media_type: str, schema: dict[str, Any]) -> Markup:
    kind = kind_of(schema)
    return kind if media_type == JSON else Markup("{} as <code>{}</code>").format(kind, media_type)


def _pretty(value: object) -> str:
    return "" if value is None else msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
