"""What every page is handed: the store, the gateway, and the settings of the site."""

import msgspec

from cadenza.gateway.gateway import Gateway
from cadenza.observe import Log
from cadenza.store.shared.state import Rates
from cadenza.store.store import Store
from cadenza.web.assets import Assets
from cadenza.web.markdown.process import MarkdownRenderer
from cadenza.web.render import Renderer
from cadenza.web.settings import SiteSettings


class WebContext(msgspec.Struct, frozen=True):
    """Shared by all pages."""

    store: Store
    gateway: Gateway
    rates: Rates
    log: Log
    settings: SiteSettings
    assets: Assets
    renderer: Renderer
    markdown: MarkdownRenderer
