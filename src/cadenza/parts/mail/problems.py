"""What can be wrong with e-mail."""

from cadenza.observe.findings import noted
from cadenza.observe.problem import Rule

MAIL_FAILS = Rule(
    "mail_fails", "ticket", "E-mail is not sent.", "Check [mail] and the mail server.", noted("mail_fails")
)
RULES = (MAIL_FAILS,)
