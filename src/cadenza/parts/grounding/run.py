"""Puts the grounder into the gateway, and another one when a reload changes `[grounding]`."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from cadenza.config import Settings
from cadenza.parts.grounding.gather import Gatherer
from cadenza.parts.grounding.grounder import ChatGrounder
from cadenza.parts.grounding.metrics import GroundingMetrics
from cadenza.parts.grounding.search.web_search import WebSearch
from cadenza.parts.grounding.settings import GroundingSettings
from cadenza.service import Run, Service


@asynccontextmanager
async def ground(service: Service) -> AsyncIterator[None]:
    gateway, metrics = service.gateway, GroundingMetrics(service.observer.metrics.registry)
    grounder = build_grounder(service, service.settings, metrics)
    gateway.grounder = grounder

    def change(settings: Settings) -> None:
        nonlocal grounder
        service.retire(grounder.stop)
        gateway.grounder = grounder = build_grounder(service, settings, metrics)

    service.on_reload["grounding"] = change
    try:
        yield
    finally:
        await grounder.stop()


def build_grounder(service: Service, settings: Settings, metrics: GroundingMetrics) -> ChatGrounder:
    given, gateway = GroundingSettings.given_in(settings), service.gateway
    is_off = given.search.engine == "off"
    search = None if is_off else WebSearch(given.search, settings.retention, service.observer)
    gatherer = Gatherer(service.store, service.observer, metrics, search)
    return ChatGrounder(gatherer, gateway.ledger, gateway.rates, files=given.attachments, memory=given.memory)


run: Run = ground
