"""Puts the grounder into the gateway, and another one when a reload changes `[grounding]`."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from cadenza.config import Settings
from cadenza.core.retention import USUAL_LIMITS, RetentionLimits
from cadenza.parts.grounding.gather import Gatherer
from cadenza.parts.grounding.grounder import ChatGrounder
from cadenza.parts.grounding.metrics import GroundingMetrics
from cadenza.parts.grounding.search.records import SearchOptions
from cadenza.parts.grounding.search.web_search import WebSearch
from cadenza.parts.grounding.settings import GroundingSettings, SearchSettings
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
    options = None if given.search.engine == "off" else search_options(given.search, settings.retention)
    search = WebSearch(options, service.observer) if options else None
    gatherer = Gatherer(service.store, service.observer, metrics, search)
    return ChatGrounder(gatherer, gateway.ledger, gateway.rates, files=given.attachments, memory=given.memory)


def search_options(given: SearchSettings, limits: RetentionLimits = USUAL_LIMITS) -> SearchOptions:
    options = msgspec.convert(given, SearchOptions, from_attributes=True)
    return msgspec.structs.replace(options, kept_s=limits.search_result_s, pages_kept_s=limits.page_s)


run: Run = ground
