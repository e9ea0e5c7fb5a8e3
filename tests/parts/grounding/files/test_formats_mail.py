"""E-mails as programs send them."""

import pytest

from cadenza.parts.grounding.files.formats.read import read_document

PNG = "iVBORw0KGgo="


def read(data: str) -> dict[str, str]:
    return {section.label: section.text for section in read_document("a.eml", "", data.encode())}


def multipart(kind: str, *parts: str) -> str:
    return f"Content-Type: multipart/{kind}; boundary={kind}\n\n" + "".join(
        f"--{kind}\n{part}\n" for part in (*parts, "")
    )


def part(kind: str, text: str, more: str = "") -> str:
    return f"Content-Type: {kind}\n{more}\n{text}"


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("=?utf-8?q?Gr=C3=BC=C3=9Fe?=", "Grüße"),
        ("=?iso-8859-1?q?Gr=FC=DFe?= =?utf-8?b?4pyT?=", "Grüße✓"),
        ("Grüße aus Köln", "Grüße aus Köln"),
        ("Grüße =?utf-8?q?aus_K=C3=B6ln?= für =?utf-8?q?Zo=C3=AB?=", "Grüße aus Köln für Zoë"),
        ("=?nonsense?q?x?= and =?utf-8?q?Zo=C3=AB?=", "=?nonsense?q?x?= and Zoë"),
        ("a\n =?utf-8?q?folded?=\n line", "a folded line"),
    ],
)
def test_headers(raw: str, shown: str) -> None:
    """A header is decoded, whether it has encoded words, plain UTF-8 or both."""
    for name in ("From", "To", "Cc", "Subject"):
        assert read(f"{name}: {raw}\n\ntext")[""] == f"{name}: {shown}\n\ntext"


def test_delivery_status() -> None:
    """A report that an e-mail was not delivered has the status of every recipient, and the e-mail itself."""
    status = "Reporting-MTA: dns; mx.example.org\n\n" + "".join(
        f"Final-Recipient: rfc822; {name}@example.org\nAction: failed\nStatus: 5.1.1\n\n" for name in ("ada", "zoe")
    )
    found = read(
        "Subject: Failure\n"
        + multipart(
            "report",
            part("text/plain", "It failed."),
            part("message/delivery-status", status),
            part("message/rfc822", "Subject: Prices\n\nOats cost 3.20."),
            part("text/rfc822-headers", "Subject: Prices"),
        )
    )
    assert list(found) == ["", *(f"attachment {one}" for one in ("delivery status", "e-mail", "headers of an e-mail"))]
    assert found[""].endswith("\n\nIt failed.")
    for said in ("mx.example.org", "ada@example.org", "zoe@example.org"):
        assert said in found["attachment delivery status"]
    assert found["attachment e-mail"] == "Subject: Prices\n\nOats cost 3.20."


def test_several_forwarded_mails() -> None:
    """E-mails without names inside an e-mail are numbered from the second on."""
    inner = (part("message/rfc822", f"Subject: {number}\n\ntext {number}") for number in "123")
    found = read("Subject: all\n" + multipart("mixed", part("text/plain", "See below."), *inner))
    labels = ["attachment e-mail", "attachment e-mail (2)", "attachment e-mail (3)"]
    assert [found[label] for label in labels] == [f"Subject: {number}\n\ntext {number}" for number in "123"]
    assert "Attachments: e-mail (18 bytes), e-mail (2) (18 bytes), e-mail (3) (18 bytes)" in found[""]


@pytest.mark.parametrize(
    ("parts", "body"),
    [
        (multipart("alternative", part("text/html", "<p>Hi <i>all</i></p>")), "Hi all"),
        (multipart("alternative", part("text/plain", "plain"), part("text/html", "<p>rich</p>")), "plain"),
        (multipart("alternative", part("text/plain", " "), part("text/html", "<p>rich</p>")), "rich"),
        (multipart("mixed", part("text/plain", "one"), part("text/html", "<p>two</p>")), "one\n\ntwo"),
        (
            multipart(
                "alternative",
                part("text/plain", ""),
                multipart("related", part("text/html", "<b>rich</b>"), part("image/png", PNG)),
            ),
            "rich",
        ),
    ],
    ids=["HTML only", "both", "empty plain text", "one after the other", "with pictures"],
)
def test_bodies(parts: str, body: str) -> None:
    """Of several forms of a text one is shown; texts that follow each other are all shown."""
    assert read(f"Subject: s\n{parts}")[""].endswith(f"\n\n{body}")


def test_mail_in_html() -> None:
    """The HTML of an e-mail is read as an HTML file is: with links, without scripts and what is hidden."""
    page = (
        "<title>t</title><p style='display:none'>preview</p><p>Dear <b>all</b>,</p><script>x()</script>"
        "<a href='https://example.org/'>prices</a><ul><li>oats<li>milk</ul>"
    )
    assert read(part("text/html; charset=utf-8", page, "From: zoe@example.org\n"))[""] == (
        "From: zoe@example.org\n\nDear all,\n\n[prices](https://example.org/)\n\n- oats\n- milk"
    )


def test_attachments_have_their_sizes() -> None:
    """An attachment is named with its size; one that cannot be read, with the reason."""
    files = {"a.txt": "x" * 2_500, "b.bin": "", "c.pdf": "%PDF-1.7 nonsense"}
    parts = [
        part("application/octet-stream", text, f"Content-Disposition: attachment; filename={name}\n")
        for name, text in files.items()
    ]
    found = read("Subject: s\n" + multipart("mixed", part("text/plain", "text"), *parts))
    assert (
        "Attachments: a.txt (2 KB), b.bin (0 bytes, not read: it is empty), "
        "c.pdf (17 bytes, not read: it is a damaged or incomplete PDF)"
    ) in found[""]
    assert list(found) == ["", "attachment a.txt"]
