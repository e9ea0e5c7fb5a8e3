"""What every page is handed: the store, the gateway, and the settings of the site."""

import msgspec

from cadenza.control.email.messages import Mailer, Notice
from cadenza.control.money.payments import PaymentProvider
from cadenza.control.sign_in.passkeys import Passkeys
from cadenza.control.sign_in.sign_in import SignIns
from cadenza.fleet.state import Rates
from cadenza.gateway.gateway import Gateway
from cadenza.observe import Log
from cadenza.store.sqlite.write_ahead_log import LogEraser
from cadenza.store.store import Store
from cadenza.web.assets import Assets
from cadenza.web.chat.markdown.process import MarkdownRenderer
from cadenza.web.docs.document import ApiDocument
from cadenza.web.docs.reference import Reference
from cadenza.web.operator.ledger_check import LedgerCheck
from cadenza.web.render import Renderer
from cadenza.web.settings import ReadMetrics, SiteSettings


class WebContext(msgspec.Struct, frozen=True):
    """Shared by all pages. Without `mailer`, the service sends no e-mail."""

    store: Store
    gateway: Gateway
    rates: Rates
    log: Log
    settings: SiteSettings
    assets: Assets
    renderer: Renderer
    markdown: MarkdownRenderer
    read_metrics: ReadMetrics  # of all worker processes
    ledger_check: LedgerCheck
    document: ApiDocument
    reference: Reference
    sign_ins: SignIns
    passkeys: Passkeys
    mailer: Mailer | None
    payments: PaymentProvider | None  # None: no payment by card
    log_eraser: LogEraser

    def send_notice(self, to: str, notice: Notice, detail: str = "") -> None:
        """Notify the owner of an account of a change by e-mail, if e-mail is configured."""
        if self.mailer:
            self.mailer.send_notice(to, notice, detail)
