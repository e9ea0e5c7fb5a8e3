"""Stand-in for the reader of documents, until the one with the confined child process replaces it: UTF-8 text only."""

from cadenza.documents.passages import split_sections
from cadenza.documents.records import Passage, Section, Unreadable
from cadenza.observe import Observer


class UnreadableFile(Exception):
    """A file that cannot be read, with its name and the reason."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(reason)
        self.name = name
        self.reason = reason


class ReaderBusy(Exception):
    """Too many files wait for the reader."""


class DocumentReader:
    """Reads UTF-8 text."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer

    async def read_passages(self, owner: str, name: str, data: bytes) -> list[Passage]:  # noqa: ARG002 of the interface
        try:
            return list(split_sections([Section("", _text(data))]))
        except Unreadable as error:
            raise UnreadableFile(name, error.reason) from None

    async def stop(self) -> None:
        """Nothing runs."""


def _text(data: bytes) -> str:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise Unreadable("it is not UTF-8 text") from None
    if "\0" in text:
        raise Unreadable("it is not text")
    return text
