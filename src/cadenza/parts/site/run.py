"""The site: pages for everything that no one else serves, and the web chat, which the gateway serves.

The pages and their packages are imported with the first of them: a service that only serves the API does without.
"""

import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from cadenza.parts.site.asgi import AsgiAdapter, AsgiApp
from cadenza.parts.site.chat.stream import WebChat
from cadenza.service import Run, Service


@asynccontextmanager
async def serve_site(service: Service) -> AsyncIterator[None]:
    chat = WebChat(service.log, service.settings.site_url, service.settings.retention)

    def build() -> AsgiApp:
        from cadenza.parts.site.application import build_site  # noqa: PLC0415 import time

        site = build_site(service, chat.markdown)
        gc.freeze()  # as after the start: a full collection would take 60 ms more
        return site

    service.router.add(chat.endpoints)
    service.serve_page = AsgiAdapter(build, service.log).serve
    try:
        yield
    finally:
        await chat.markdown.stop()


run: Run = serve_site
