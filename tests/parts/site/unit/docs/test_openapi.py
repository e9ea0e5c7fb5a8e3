"""The OpenAPI document as it is made from tables of routes."""

from typing import Any

import msgspec
import schemathesis

from cadenza.parts.site.docs.openapi import build_document
from cadenza.parts.site.routes import Access, ApiEndpoint, endpoint
from cadenza.parts.site.visit import Visit


class Model(msgspec.Struct, frozen=True):
    """Has the name of a schema of the API."""

    shade: str


class Wanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is looked for."""

    text: str
    count: int = 5


async def show(_visit: Visit) -> list[Model]:
    return []


async def find(_visit: Visit, _wanted: Wanted) -> None: ...


async def serve(_visit: Visit) -> None: ...


def operation(one: ApiEndpoint) -> dict[str, Any]:
    document = build_document([one]).value
    schemathesis.openapi.from_dict(document).validate()
    found: dict[str, Any] = document["paths"]["/platform/api" + one.path][one.method.lower()]
    return found


def test_a_name_that_the_api_has_is_changed() -> None:
    """A record that is called like a schema of the API is renamed, and replies refer to the new name."""
    one = endpoint("GET", "/things/{thing_id}", "Show a thing", show)
    document = build_document([one]).value
    schemas = document["components"]["schemas"]
    assert set(schemas["PlatformModel"]["properties"]) == {"shade"}
    assert "owned_by" in schemas["Model"]["properties"]
    content = operation(one)["responses"]["200"]["content"]["application/json"]
    assert content["schema"]["items"] == {"$ref": "#/components/schemas/PlatformModel"}


def test_a_query_becomes_parameters() -> None:
    """The fields of a query are parameters, and its record is no schema of its own."""
    one = endpoint("GET", "/things", "Find things", find)
    found = {(given["name"], given["in"], given["required"]) for given in operation(one)["parameters"]}
    assert found == {("text", "query", True), ("count", "query", False)}
    assert "Wanted" not in build_document([one]).value["components"]["schemas"]


def test_access_becomes_security_and_errors() -> None:
    """Who may use an endpoint decides which schemes it needs and which refusals it documents."""
    read = operation(endpoint("GET", "/a", "Read", serve, access=Access.ANYONE))
    assert (read["security"], {"401", "403", "404"} & read["responses"].keys()) == ([], set())
    change = operation(endpoint("POST", "/operator/{b}", "Change", find, scope="a:write"))
    assert change["security"] == [{"session": [], "csrf": []}, {"accessToken": ["a:write"]}]
    assert {"204", "400", "401", "403", "404", "429"} <= change["responses"].keys()


def test_another_media_type_is_described() -> None:
    """A reply that is not JSON has its media type."""
    export = operation(endpoint("GET", "/a.csv", "Export", serve, media_type="text/csv"))
    assert set(export["responses"]["200"]["content"]) == {"text/csv"}
    assert export["operationId"] == "getPlatformACsv"
