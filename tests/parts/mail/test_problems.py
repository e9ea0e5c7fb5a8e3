"""E-mails that are not sent are a problem, in the words of the queue."""

from cadenza.observe.facts import Facts
from cadenza.observe.health import problems
from cadenza.parts.mail.problems import MAIL_FAILS


def test_a_mail_server_that_refuses_is_a_problem() -> None:
    """What the queue notes is told as it is; without a note all is well."""
    assert problems(Facts(notes={MAIL_FAILS.kind: "it refuses the login"})) == [
        MAIL_FAILS.problem("it refuses the login")
    ]
    assert problems(Facts(notes={MAIL_FAILS.kind: ""})) == []
