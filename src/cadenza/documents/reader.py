"""Stand-in."""

from collections.abc import Sequence

import msgspec

from cadenza.observe import Observer


class SentFile(msgspec.Struct, frozen=True):
    name: str
    data: memoryview


class FileText(msgspec.Struct, frozen=True):
    name: str
    text: str
    is_cut: bool
    shown: str
    tokens: int


class UnreadableFile(Exception):
    def __init__(self, name: str, reason: str) -> None:
        self.name = name
        self.reason = reason


class ReaderBusy(Exception):
    pass


class DocumentReader:
    def __init__(self, observer: Observer) -> None:
        pass

    async def read_files(self, owner: str, files: Sequence[SentFile], question: str, tokens_max: int) -> list[FileText]:
        return [FileText(one.name, "text", False, "", 1) for one in files]

    async def stop(self) -> None:
        pass
