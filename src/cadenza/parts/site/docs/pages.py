"""The docs of the site: how to start, classes with prices and state, limits, errors, the reference and a console.

Everybody may read them. Providers and models behind the classes are not named.
"""

from typing import Literal

import msgspec
from starlette.responses import Response

from cadenza.core.price_schedules import PricingChange, show_changes, show_price
from cadenza.core.records import CONTEXT_TOKENS_MAX, OUTPUT_TOKENS_MAX
from cadenza.gateway.gateway import Gateway
from cadenza.parts.site.docs.openapi import ERRORS as ERROR_RESPONSES
from cadenza.parts.site.errors import Missing
from cadenza.parts.site.render import redirect
from cadenza.parts.site.routes import Access, Routes, endpoint, get
from cadenza.parts.site.visit import Visit
from cadenza.routing.catalogue import ServedClass

BODY_BYTES_MAX = 32 * 1024 * 1024


class ClassStatus(msgspec.Struct, frozen=True):
    """A class: whether it can be used now, and its prices in dollars for a million tokens.

    Without a cached price, cached input costs as much as other input.
    """

    id: str
    state: Literal["usable", "failing"]
    input: str
    output: str
    cached_input: str | None
    price_changes: list[PricingChange]  # those to come, by date
    context_tokens: int
    max_output_tokens: int


class ServiceLimits(msgspec.Struct, frozen=True):
    """The limits of every key without limits of its own, and those of a request."""

    requests_per_second: float
    burst: int
    context_tokens: int = CONTEXT_TOKENS_MAX
    output_tokens: int = OUTPUT_TOKENS_MAX
    body_bytes: int = BODY_BYTES_MAX


class ServiceStatus(msgspec.Struct, frozen=True):
    """The classes and the limits of the service."""

    classes: list[ClassStatus]
    limits: ServiceLimits


class ErrorRow(msgspec.Struct, frozen=True):
    """An error of the API, and what to do about it."""

    status: int
    type: str
    cause: str
    advice: str


ERRORS = (
    ErrorRow(400, "invalid_request_error", "The request is wrong.", "Change what the message says."),
    ErrorRow(401, "authentication_error", "No valid key: missing, mistyped, revoked or expired.", "Use another key."),
    ErrorRow(
        402,
        "insufficient_quota",
        "The credit or the key's spend cap is used up, or the account has a debt.",
        "Add credit or raise the cap.",
    ),
    ErrorRow(403, "permission_error", "The key lacks the scope.", "Use a key that has it."),
    ErrorRow(404, "invalid_request_error", "Unknown path or model.", "Check the address; it ends in /v1."),
    ErrorRow(405, "invalid_request_error", "Wrong method.", "Use one of the header allow."),
    ErrorRow(408, "invalid_request_error", "The body came too slowly.", "Send it again."),
    ErrorRow(409, "invalid_request_error", "The Idempotency-Key was used before.", "Do not send it again."),
    ErrorRow(413, "invalid_request_error", "The body is larger than 32 MiB.", "Send less."),
    ErrorRow(415, "invalid_request_error", "The body is compressed.", "Send it plain."),
    ErrorRow(429, "rate_limit_error", "Too many requests, or the service is full.", "Wait as retry-after-ms says."),
    ErrorRow(500, "api_error", "A fault of the service.", "Retry; report the x-request-id."),
    ErrorRow(502, "api_error", "The upstream model failed.", "Retry."),
)
PLATFORM_ERRORS = {status: description for status, _, description, _ in ERROR_RESPONSES}


async def docs_page(visit: Visit) -> Response:
    reference = visit.context.reference
    return visit.page(
        "docs/api.html",
        service=await get_status(visit),
        classes=visit.service.gateway.snapshot.catalogue.served(),
        offer=visit.service.gateway.grounder.offer(),
        errors=ERRORS,
        tags=reference.api_tags,
        operations=reference.operations,
        reference=reference.api(visit.base_url),
    )


async def platform_page(visit: Visit) -> Response:
    return visit.page("docs/platform.html", tags=visit.context.reference.platform_tags, errors=PLATFORM_ERRORS)


async def group_page(visit: Visit) -> Response:
    tags, name = visit.context.reference.platform_tags, visit.path_param("group")
    html = visit.context.reference.platform(name)
    if html is None:
        raise Missing
    [tag] = [tag for tag in tags if tag.name == name]
    return visit.page("docs/group.html", tags=tags, tag=tag, reference=html)


async def status_page(_visit: Visit) -> Response:
    return redirect("/docs#classes")


async def get_status(visit: Visit) -> ServiceStatus:
    gateway = visit.service.gateway
    classes = [_class_status(gateway, served, visit.now_ms) for served in gateway.snapshot.catalogue.served()]
    rate = gateway.snapshot.limits.rate
    return ServiceStatus(classes, ServiceLimits(rate.per_s, rate.burst))


def is_usable(gateway: Gateway, served: ServedClass) -> bool:
    """Whether any route of the class is not failing."""
    return any(gateway.dispatcher.health.of(route).is_usable for route in served.plan.routes)


def _class_status(gateway: Gateway, served: ServedClass, now_ms: int) -> ClassStatus:
    price = show_price(served.prices.at(now_ms))
    return ClassStatus(
        id=served.plan.class_id,
        state="usable" if is_usable(gateway, served) else "failing",
        input=price.input,
        output=price.output,
        cached_input=price.cached_input,
        price_changes=show_changes(served.prices.after(now_ms)),
        context_tokens=max(route.context_tokens for route in served.plan.routes),
        max_output_tokens=served.plan.max_output_tokens,
    )


ROUTES: Routes = (
    get("/docs", docs_page, Access.ANYONE),
    get("/docs/platform", platform_page, Access.ANYONE),
    get("/docs/platform/{group}", group_page, Access.ANYONE),
    get("/status", status_page, Access.ANYONE),
    endpoint(
        "GET",
        "/status",
        "Show the classes with their prices and state, and the limits",
        get_status,
        access=Access.ANYONE,
    ),
)
