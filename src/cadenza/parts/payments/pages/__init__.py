"""The pages of payments: vouchers, and what the pages of credit, of an account and of the overview show of them."""

from cadenza.parts.payments.pages import cards, overview, transfers, vouchers
from cadenza.parts.site.joining import Pages
from cadenza.parts.site.operator.accounts import ONE
from cadenza.parts.site.render import Tab
from cadenza.parts.site.visit import Panel

PAGES = Pages(
    routes=(*cards.ROUTES, *vouchers.ROUTES, *transfers.ROUTES),
    tabs=(Tab(vouchers.PAGE, "Vouchers", after="/operator/keys"),),
    panels=(
        Panel("/credit", "payments/add_credit.html", cards.panel_values, "top"),
        Panel("/credit", "payments/payments.html", cards.panel_values, "middle"),
        Panel(ONE, "payments/transfers.html", transfers.panel_values, "credit"),
        Panel("/operator", "payments/takings.html", overview.panel_values),
    ),
    notes={
        "redeemed": "The credit of the voucher is on your account.",
        "paid": "Thank you. The credit arrives when the payment is confirmed, usually within a minute.",
        "not-paid": "The payment was not made, and nothing was charged.",
        "voucher-revoked": "The voucher has expired. Its code gives no credit any more.",
    },
)
