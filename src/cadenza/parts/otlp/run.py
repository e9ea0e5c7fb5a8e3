"""Sends traces and metrics to the collector while the service runs."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from cadenza.parts.otlp.collector_link import CollectorLink, process_attributes
from cadenza.parts.otlp.exporter import OtlpExporter
from cadenza.parts.otlp.settings import ObserveSettings
from cadenza.parts.otlp.traces import Tracer
from cadenza.service import Run, Service


@asynccontextmanager
async def export(service: Service) -> AsyncIterator[None]:
    given = service.settings.of(ObserveSettings)
    if not given:
        yield
        return
    link = CollectorLink(given.otlp_url, given.headers or "", given.proxy)
    exporter = OtlpExporter(link.post, service.observer, process_attributes())
    service.serve_api = Tracer(service.router, service.observer.at, given.sample, exporter.add).serve
    exporter.start()
    try:
        yield
    finally:
        await exporter.stop()


run: Run = export
