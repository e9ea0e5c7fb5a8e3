"""Builds the site. Imported when the first visitor comes, and not before."""

from starlette.applications import Starlette

from cadenza.gateway.gateway import Gateway
from cadenza.observe import Log
from cadenza.store.shared.state import Rates
from cadenza.web.application import build_application
from cadenza.web.assets import Assets
from cadenza.web.context import WebContext
from cadenza.web.markdown.process import MarkdownRenderer
from cadenza.web.render import Renderer
from cadenza.web.settings import SiteSettings


def build_site(
    gateway: Gateway, rates: Rates, log: Log, settings: SiteSettings, markdown: MarkdownRenderer
) -> Starlette:
    assets = Assets()
    context = WebContext(gateway.store, gateway, rates, log, settings, assets, Renderer(assets), markdown)
    return build_application(context)
