"""What grounding adds to a request: the edits of its messages, their texts, and what the client is told."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

import msgspec

from cadenza.core.chat import Asked, ChatRequest, FilePart
from cadenza.grounding.edits import Edit, apply_edits, insert_before, replace_part
from cadenza.grounding.fence import CITE, NOTES, NOTICE, QUESTION, fence, fence_id, fence_notes
from cadenza.grounding.search.records import Found, Source

SEARCH_FAILED_NOTE = (
    "A search for my question failed. If the answer needs facts that may have changed, say that you could not search."
)
CUT = "the file is too long, the rest is left out"


class ReadFile(msgspec.Struct, frozen=True):
    """A file and its text."""

    part: FilePart
    text: str
    shown: str = ""  # which part of the file the text is, where it is not the whole
    tokens: int = 0  # at most


class Material(msgspec.Struct, frozen=True):
    """What the parts of grounding found."""

    files: Sequence[ReadFile] = ()
    notes: Sequence[str] = ()
    found: Found = Found()


class Grounding(msgspec.Struct, frozen=True):
    """What was added to one request. `sources` are those that its answer may cite; `headers` tell the client.

    `fence_ids` are those of all its fences, which are no part of an answer. `charged_nano` is what finding it cost.
    """

    edits: Mapping[int, Sequence[Edit]] = {}  # by the index of the message
    texts: tuple[str, ...] = ()
    sources: tuple[Source, ...] = ()
    headers: bytes = b""
    fence_ids: tuple[str, ...] = ()
    texts_bytes: int = 0  # of the texts, as they stand in the JSON
    charged_nano: int = 0

    def edited(self, index: int, message: msgspec.Raw) -> list[bytes | memoryview]:
        return apply_edits(message, self.edits[index])


NO_GROUNDING = Grounding()


def add_material(chat: ChatRequest, asked: Asked, material: Material) -> Grounding:
    """Files go where the client put them; notes and sources come directly before the user's own words."""
    edits: defaultdict[int, list[Edit]] = defaultdict(list)
    texts = list[str]()
    last, start = asked.message, asked.words_start
    before = _pieces_before_words(material) if start is not None else []
    fenced = [piece for piece in before if piece.startswith("<")]
    if before and start is not None:
        text = "\n\n".join([*before, QUESTION if asked.question.strip() else ""])
        edits[last].append(insert_before(chat.messages[last], start, text))
        texts.append(text)
    told = set[int]()  # the messages whose files have the notice
    for file in material.files:
        text = _file_text(file)
        fenced.append(text)
        if file.part.message not in told:
            text = f"{NOTICE}\n\n{text}"
            told.add(file.part.message)
        edits[file.part.message].append(replace_part(file.part.start, file.part.end, f"{text}\n\n"))
        texts.append(text)
    sources = tuple(material.found.sources) if before else ()
    counts = {
        "memory": len(material.notes) if before else 0,
        "search": len(sources),
        "attachments": len(material.files),
        "cut": sum(bool(file.shown) for file in material.files),
    }
    told_counts = {part: str(count) for part, count in counts.items() if count}
    if material.found.has_failed:
        told_counts["search"] = "failed"
    added = " ".join([f"{part}={count}" for part, count in told_counts.items()])
    headers = f"x-cadenza-grounding: {added}\r\n".encode() if added else b""
    texts_bytes = sum(len(edit.json) for of_message in edits.values() for edit in of_message)
    return Grounding(edits, tuple(texts), sources, headers, tuple(map(fence_id, fenced)), texts_bytes)


def _pieces_before_words(material: Material) -> list[str]:
    """Notes and sources, each after what the model is to make of them."""
    pieces = list[str]()
    if material.notes:
        pieces += [NOTES, fence_notes(material.notes)]
    if material.found.sources:
        pieces.append(f"{NOTICE} {CITE}")
    for number, source in enumerate(material.found.sources, start=1):
        pieces.append(fence("source", source.text, number=str(number), title=source.title, url=source.url))
    pieces += [f"The page {page.url} {page.reason}. Say so if it matters." for page in material.found.unread]
    if material.found.has_failed:
        pieces.append(SEARCH_FAILED_NOTE)
    return pieces


def _file_text(file: ReadFile) -> str:
    return fence("file", file.text, name=file.part.name, shows=file.shown, cut=CUT if file.shown else "")
