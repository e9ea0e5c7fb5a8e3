"""Puts the endpoints of the protocols beside the core's, and the translators into the program for large bodies."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from cadenza.gateway.endpoints import USE_CHAT, USE_OPENAI, Endpoint
from cadenza.parts.protocols.anthropic import MESSAGE_ERRORS, count_tokens, serve_messages
from cadenza.parts.protocols.azure import DEPLOYMENT_PATH, serve_deployment
from cadenza.parts.protocols.responses import serve_responses
from cadenza.service import Run, Service

POST = ("POST",)
ENDPOINTS = (
    Endpoint("/v1/messages", "messages", POST, "inference", serve_messages, errors=MESSAGE_ERRORS, is_chat=True),
    Endpoint("/v1/messages/count_tokens", "count_tokens", POST, "inference", count_tokens, errors=MESSAGE_ERRORS),
    Endpoint("/v1/responses", "responses", POST, "inference", serve_responses, is_chat=True),
    Endpoint(DEPLOYMENT_PATH, "azure_chat", POST, "inference", serve_deployment, is_chat=True),
)
INSTEAD = {
    "/v1/responses": "Responses are not stored here: send the whole conversation as `input` to POST /v1/responses.",
    "/v1/messages": f"{USE_CHAT}, or POST /v1/messages, with one request each.",
    "/openai": f"Of Azure's paths there is only POST /openai/deployments/{{class}}/chat/completions. {USE_OPENAI}.",
}
CHILD = "cadenza.parts.protocols.child"


@asynccontextmanager
async def serve_protocols(service: Service) -> AsyncIterator[None]:
    service.router.add(ENDPOINTS, INSTEAD)
    service.gateway.large_bodies.parse_with(CHILD)
    yield


run: Run = serve_protocols
