"""Files and web pages to sections, by their format. Only UTF-8 text is known so far."""

from cadenza.documents.records import PageText, Section, Unreadable


def read_document(name: str, media_type: str, data: bytes) -> list[Section]:  # noqa: ARG001 other formats need them
    """The sections of a file. Raises Unreadable."""
    return [Section("", _text(data))]


def read_page(url: str, content_type: str, data: bytes) -> PageText:  # noqa: ARG001 other formats need them
    """The title and the main text of a web page. Raises Unreadable."""
    return PageText("", [Section("", _text(data))])


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise Unreadable("it is not text") from None
