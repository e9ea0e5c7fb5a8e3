"""Builds the OpenAPI document: openapi.json describes /v1 and the probes, the route tables describe /platform/api.

A part may have an openapi.json too, with what it adds: objects are merged, and lists put one after the other.

A type of a table that has the name of a schema of /v1 is renamed, so that neither replaces the other.
"""

import re
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from importlib.resources import files
from typing import Any

import msgspec

from cadenza.core.orders import describe_fields
from cadenza.core.public import public_type
from cadenza.parts import PARTS
from cadenza.parts.site.cookies import CSRF_HEADER, SESSION_COOKIE
from cadenza.parts.site.docs.reference import ApiDocument
from cadenza.parts.site.routes import JSON, Access, ApiEndpoint, Page
from cadenza.parts.site.visit import SAFE_METHODS

PLATFORM = "/platform/api"
SCHEMAS = "#/components/schemas/"
PARAMETER = re.compile(r"\{(\w+)\}")
ERROR_CONTENT = {JSON: {"schema": {"$ref": f"{SCHEMAS}Error"}}}
TEXT_CONTENT = {"text/plain": {"schema": {"type": "string"}}}
SECURITY_SCHEMES = {
    "session": {
        "type": "apiKey",
        "in": "cookie",
        "name": SESSION_COOKIE,
        "description": f"The session of a signed-in browser. Over TLS the cookie is `__Host-{SESSION_COOKIE}`.",
    },
    "csrf": {
        "type": "apiKey",
        "in": "header",
        "name": CSRF_HEADER,
        "description": "The token of the session, which every page has in `data-csrf` of its body.",
    },
    "accessToken": {
        "type": "http",
        "scheme": "bearer",
        "description": "An access token (`cdz_…`) with the scope. The page /settings/tokens makes one.",
    },
}
ERRORS = (  # of /platform/api: status, name, description and content
    ("400", "PlatformInvalid", "It cannot be done. The message says why", ERROR_CONTENT),
    ("401", "NotSignedIn", "No session, and no valid access token", ERROR_CONTENT),
    (
        "403",
        "NotAllowed",
        "Only for operators, the token lacks the scope, or the request does not come from one of our pages",
        ERROR_CONTENT,
    ),
    ("404", "Missing", "There is no such thing, or it belongs to another account", ERROR_CONTENT),
    ("408", "FormTooSlow", "The body did not arrive in time", TEXT_CONTENT),
    ("413", "FormTooLarge", "The body is larger than 64 KiB", ERROR_CONTENT),
    ("429", "TooManyVisits", "Too many requests from your network, or the store does not answer", ERROR_CONTENT),
    ("500", "Broken", "A fault of the service", TEXT_CONTENT),
    ("503", "Busy", "The service has no memory for the body at the moment", TEXT_CONTENT),
)
RESPONSES: dict[str, dict[str, Any]] = {
    name: {"description": description, "content": content} for _, name, description, content in ERRORS
}
RESPONSES["TooManyVisits"]["headers"] = {"retry-after": {"$ref": "#/components/headers/RetryAfter"}}


def build_document(routes: Iterable[Page | ApiEndpoint]) -> ApiDocument:
    value: dict[str, Any] = {}
    for text in _read_documents():
        merge(value, msgspec.json.decode(text))
    endpoints = [one for one in routes if isinstance(one, ApiEndpoint)]
    paths, schemas = _describe(endpoints, value["components"]["schemas"])
    value["paths"] |= paths
    for name in dict.fromkeys(map(_group, endpoints)):
        value["tags"].append({"name": name, "description": "The platform API: " + name.removeprefix("platform: ")})
    components = value["components"]
    components["schemas"] |= schemas
    components["securitySchemes"] |= SECURITY_SCHEMES
    components["responses"] |= RESPONSES
    _complete_types(value)
    return ApiDocument(value)


def _complete_types(value: object) -> None:
    """Add what client generators do not infer: the type of an enum, that an integer has 64 bits, what a pair has."""
    if isinstance(value, dict):
        if "enum" in value and "type" not in value:
            words = [word for word in value["enum"] if word is not None]
            if words != value["enum"]:
                value["anyOf"] = [{"type": "string", "enum": words}, {"type": "null"}]
                del value["enum"]
            else:
                value["type"] = "string"
        if "integer" in (value.get("type"), *_listed(value.get("type"))):
            value.setdefault("format", "int64")
        if pair := value.get("prefixItems"):
            value["items"] = pair[0]
        for part in value.values():
            _complete_types(part)
    for part in _listed(value):
        _complete_types(part)


def _listed(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _read_documents() -> Iterator[str]:
    """What is written by hand, with the version of this program, and what each installed part adds to it."""
    own = files("cadenza.parts.site.docs").joinpath("openapi.json")
    yield own.read_text(encoding="utf-8").replace("{version}", version("cadenza"))
    for part in PARTS:
        if part.is_installed and (added := part.folder / "openapi.json").is_file():
            yield added.read_text(encoding="utf-8")


def merge(document: dict[str, Any], added: dict[str, Any]) -> None:
    for name, value in added.items():
        if isinstance(value, dict):
            merge(document.setdefault(name, {}), value)
        else:
            document[name] = [*document.get(name, ()), *value] if isinstance(value, list) else value


def _describe(endpoints: list[ApiEndpoint], taken: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The paths of the endpoints, and the schemas that they refer to."""
    endpoints = [msgspec.structs.replace(one, returns=public_type(one.returns)) for one in endpoints]
    described = [kind for one in endpoints for kind in (one.takes, one.returns) if kind and not isinstance(kind, str)]
    types = list(dict.fromkeys(described))
    found, schemas = msgspec.json.schema_components(types, ref_template=SCHEMAS + "{name}")
    by_type = dict(zip(types, found, strict=True))
    describe_fields([one.takes for one in endpoints if one.takes], schemas)
    paths: dict[str, dict[str, Any]] = {}
    for one in endpoints:
        operation = _operation(one, by_type, schemas)
        paths.setdefault(PLATFORM + one.path, {})[one.method.lower()] = operation
    queries = {by_type[one.takes]["$ref"].removeprefix(SCHEMAS) for one in endpoints if one.takes and _is_safe(one)}
    kept = {name: schema for name, schema in schemas.items() if name not in queries}  # they became parameters
    return _renamed((paths, kept), taken.keys() & kept.keys())


def _renamed(described: tuple[Any, Any], names: set[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The same with these schemas renamed, in all references to them, and in their titles, which generators use."""
    text = msgspec.json.encode(described).decode()
    for name in names:
        text = text.replace(f'"{SCHEMAS}{name}"', f'"{SCHEMAS}Platform{name}"')
    paths, schemas = msgspec.json.decode(text)
    for name in names:
        schemas[f"Platform{name}"] = schemas.pop(name) | {"title": f"Platform{name}"}
    return paths, schemas


def _operation(one: ApiEndpoint, by_type: dict[Any, Any], schemas: dict[str, Any]) -> dict[str, Any]:
    is_safe = _is_safe(one)
    names = PARAMETER.findall(one.path)
    parameters = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]
    if one.takes and is_safe:
        parameters += _query_parameters(schemas[by_type[one.takes]["$ref"].removeprefix(SCHEMAS)])
    operation: dict[str, Any] = {
        "operationId": _operation_id(one),
        "tags": [_group(one)],
        "summary": one.summary,
        "security": _security(one, is_safe=is_safe),
        "responses": {**_success(one, by_type), **_errors(one, is_safe=is_safe)},
    }
    scope = f"An access token needs the scope `{one.scope}`." if one.scope else ""
    if text := " ".join(filter(None, ("For operators." if one.access is Access.OPERATOR else "", scope))):
        operation["description"] = text
    if parameters:
        operation["parameters"] = parameters
    body = {"$ref": SCHEMAS + one.body} if one.body else by_type.get(one.takes)
    if body and not is_safe:
        operation["requestBody"] = {"required": True, "content": {JSON: {"schema": body}}}
    return operation


def _is_safe(one: ApiEndpoint) -> bool:
    return one.method in SAFE_METHODS


def _query_parameters(schema: dict[str, Any]) -> list[dict[str, Any]]:
    required = schema.get("required", [])
    return [
        {"name": name, "in": "query", "required": name in required, "schema": kind}
        for name, kind in schema["properties"].items()
    ]


def _security(one: ApiEndpoint, *, is_safe: bool) -> list[dict[str, list[str]]]:
    """The ways to be let in: by the cookie of a browser, or by a token with the scope."""
    schemes = [*(["session"] if one.access is not Access.ANYONE else []), *([] if is_safe else ["csrf"])]
    by_cookie: dict[str, list[str]] = {name: [] for name in schemes}
    by_token = {"accessToken": [one.scope]} if one.scope else {}
    return [way for way in (by_cookie, by_token) if way]


def _success(one: ApiEndpoint, by_type: dict[Any, Any]) -> dict[str, Any]:
    if one.media_type != JSON:
        return {"200": {"description": "The result", "content": {one.media_type: {"schema": {"type": "string"}}}}}
    if one.returns is None:
        return {"204": {"description": "It is done"}}
    schema = {"$ref": SCHEMAS + one.returns} if isinstance(one.returns, str) else by_type[one.returns]
    return {"200": {"description": "The result", "content": {JSON: {"schema": schema}}}}


def _errors(one: ApiEndpoint, *, is_safe: bool) -> dict[str, Any]:
    never = {
        *(["NotSignedIn"] if one.access is Access.ANYONE else []),
        *(["NotAllowed"] if one.access is Access.ANYONE and is_safe else []),
        *(["Missing"] if "{" not in one.path and is_safe else []),
    }
    return {status: {"$ref": f"#/components/responses/{name}"} for status, name, *_ in ERRORS if name not in never}


def _operation_id(one: ApiEndpoint) -> str:
    """Like getPlatformOperatorAccountsByAccountId: never one of /v1, because generators need each to be unique."""
    parts = [part for part in re.split(r"[/.-]", one.path) if part]
    words = ["platform", *(f"By_{part[1:-1]}" if part.startswith("{") else part for part in parts)]
    return one.method.lower() + "".join(word[0].upper() + word[1:] for part in words for word in part.split("_"))


def _group(one: ApiEndpoint) -> str:
    """The name of the tag: the first word of the path."""
    return "platform: " + re.split(r"[/.]", one.path.removeprefix("/"))[0]
