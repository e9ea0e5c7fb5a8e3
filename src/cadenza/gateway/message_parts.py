"""The parts of a message: text and refusals, files, images and audio.

Files are read here on the plain path (see `grounding`). Images and audio, and files on the tool path, go to a model
that takes them. Their data stays raw JSON: it can be as large as the body.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from cadenza.core.chat import NO_MEDIA, FilePart, Media
from cadenza.core.content import Content
from cadenza.core.errors import InvalidRequest
from cadenza.core.file_tokens import FileTokens, tokens_of_file, tokens_of_image, tokens_of_sound
from cadenza.core.files import clean_name
from cadenza.core.image_tokens import IMAGE_TOKENS, IMAGE_TOKENS_MAX, PATCHES_MAX
from cadenza.core.message_json import GAP, RAW_FIELDS, RAW_ITEMS, find_content, skip
from cadenza.gateway.tools import NOTHING

FILES_MAX = 20
NO_TOKENS = FileTokens(0, 0, is_certain=True)
ANY_IMAGE = FileTokens(IMAGE_TOKENS, IMAGE_TOKENS_MAX)
# The capability of a route that parts of this type need.
CAPABILITIES = {"image_url": "vision", "input_audio": "audio", "file": "files"}

# An image with nothing but its address and its detail: with another field, or one twice, its size is in doubt.
_DETAIL = rb'"detail"\s*+:\s*+"(low|high|auto)"'
_BEFORE_URL = re.compile(rb'\{\s*+(?:%b\s*+,\s*+)?"url"\s*+:\s*+' % _DETAIL)
_AFTER_URL = re.compile(rb"(?:\s*+,\s*+%b)?\s*+\}" % _DETAIL)


class File(Content, msgspec.Struct):
    """The file of a part, as OpenAI has it."""

    filename: str | None = None
    file_data: msgspec.Raw = NOTHING
    file_id: msgspec.Raw = NOTHING


class MessagePart(Content, msgspec.Struct):
    """The fields of a part that are looked at."""

    type: str
    text: str | None = None
    refusal: str | None = None
    file: File | None = None
    image_url: msgspec.Raw = NOTHING
    input_audio: msgspec.Raw = NOTHING

    @property
    def data_bytes(self) -> int:
        """Of what is no text."""
        return len(self.image_url) + len(self.input_audio) + (len(self.file.file_data) if self.file else 0)


Contents = Sequence[tuple[int, list[MessagePart]]]  # each with the index of its message


class Attached(Content, msgspec.Struct, frozen=True):
    """What a request has in addition to text, and the capabilities that a route needs for it."""

    files: tuple[FilePart, ...] = ()  # to be read here
    media: Media = NO_MEDIA
    needs: frozenset[str] = frozenset()
    excluded: Mapping[int, Sequence[msgspec.Raw]] = {}  # the data that `media` measures, by the index of its message


NOTHING_ATTACHED = Attached()


def check_part(path: str, part: MessagePart, role: str) -> str:
    """Check a part and return its text."""
    if part.type == "text":
        if part.text is None:
            raise InvalidRequest(f"{path}.text: missing.")
        return part.text
    if part.type == "refusal" and role == "assistant" and part.refusal is not None:
        return part.refusal
    if part.type not in CAPABILITIES:
        raise InvalidRequest(
            f"{path}.type: only parts of type 'text' are supported, and in user messages 'file', 'image_url' and "
            "'input_audio'."
        )
    if role != "user":
        raise InvalidRequest(f"{path}.type: parts of type '{part.type}' are supported in user messages only.")
    if part.type == "file":
        _check_file(f"{path}.file", part.file)
    elif (part.image_url if part.type == "image_url" else part.input_audio) == NOTHING:
        raise InvalidRequest(f"{path}.{part.type}: missing.")
    return ""


def _check_file(path: str, file: File | None) -> None:
    if file is None:
        raise InvalidRequest(f"{path}: missing.")
    if file.file_id != NOTHING:
        raise InvalidRequest(f"{path}.file_id: no files are kept here. Send the file inline, as `file_data`.")
    if file.file_data == NOTHING:
        raise InvalidRequest(f"{path}.file_data: missing. Send the file inline, as a data URL or as base64.")
    if memoryview(file.file_data)[0] != ord('"'):
        raise InvalidRequest(f"{path}.file_data: must be a string: a data URL or base64.")


def find_attached(messages: Sequence[msgspec.Raw], contents: Contents, *, reads_files: bool) -> Attached:
    """What these contents have in addition to text. Files that are not read here need a route that takes them.

    Files are found in the messages as they are forwarded: that is where their text is put.
    """
    parts = [part for _, content in contents for part in content if part.type in CAPABILITIES]
    if not parts:
        return NOTHING_ATTACHED
    file_count = sum(part.type == "file" for part in parts)
    if file_count > FILES_MAX:
        raise InvalidRequest(f"messages: {file_count} files were sent; at most {FILES_MAX} are allowed.")
    needs = frozenset(CAPABILITIES[part.type] for part in parts)
    media, excluded = NO_MEDIA, dict[int, list[msgspec.Raw]]()
    for message, content in contents:
        for part in content:
            if part.type in CAPABILITIES:
                data, tokens = _data_of(part, reads_files=reads_files)
                media = _add(media, tokens, 0 if data is None else len(data))
                if data is not None:
                    excluded.setdefault(message, []).append(data)
    if not reads_files:
        return Attached((), media, needs, excluded)
    return Attached(tuple(_find_files(messages, contents)), media, needs - {"files"}, excluded)


def _data_of(part: MessagePart, *, reads_files: bool) -> tuple[msgspec.Raw | None, FileTokens]:
    """The data of a part that is not text: its JSON string, which is not counted as text, and its tokens.

    Without such a string the part counts as text, and as an image of any size. A file that is read here is left out of
    the prompt: its text is added instead.
    """
    if part.type == "file":
        assert part.file
        data = part.file.file_data
        return data, NO_TOKENS if reads_files else tokens_of_file(data)
    if part.type == "input_audio":
        sound = _string(part.input_audio, "data")
        tokens = tokens_of_sound(sound) if sound else None
        return (sound, tokens) if tokens else (None, NO_TOKENS)
    url = _string(part.image_url, "url")
    details = _details(bytes(part.image_url), bytes(url)) if url else None
    is_low = details == {None, b"low"}
    if url and (tokens := tokens_of_image(url, is_low=is_low)):
        return url, tokens if details else ANY_IMAGE
    return None, FileTokens(IMAGE_TOKENS, PATCHES_MAX) if is_low else ANY_IMAGE


def _details(image: bytes, url: bytes) -> set[bytes | None] | None:
    """The detail before the address and the one after it; None if there is anything else, or either of them twice."""
    before = _BEFORE_URL.match(image)
    if before is None or not image.startswith(url, before.end()):
        return None
    after = _AFTER_URL.fullmatch(image, before.end() + len(url))
    return after and {before[1], after[1]}


def _string(raw: msgspec.Raw, name: str) -> msgspec.Raw | None:
    """A field of an object, if it is a string. Some clients send the string instead of the object."""
    if memoryview(raw)[0] == ord('"'):
        return raw
    value = RAW_FIELDS.decode(raw).get(name) if memoryview(raw)[0] == ord("{") else None
    return value if value is not None and memoryview(value)[0] == ord('"') else None


def _add(media: Media, tokens: FileTokens, size_bytes: int) -> Media:
    return Media(
        media.size_bytes + size_bytes,
        media.tokens + tokens.usual,
        media.tokens_held + tokens.most,
        media.tokens_max + tokens.most,
        media.doubtful_tokens + (0 if tokens.is_certain else tokens.most),
    )


def with_files(media: Media, files: Iterable[FilePart]) -> Media:
    """The same media with these files, which are not read here but go to the model."""
    for file in files:
        media = _add(media, tokens_of_file(file.data), 0)  # their bytes are left out already
    return media


def _find_files(messages: Sequence[msgspec.Raw], contents: Contents) -> Iterator[FilePart]:
    for message, parts in contents:
        if not any(part.type == "file" for part in parts):
            continue
        raw, span = memoryview(messages[message]), find_content(messages[message])
        if span is None:
            raise InvalidRequest(f"messages[{message}]: has a field twice.")
        end = span[0]
        for part, item in zip(parts, RAW_ITEMS.decode(raw[slice(*span)]), strict=True):
            start = skip(GAP, raw, end)
            end = start + memoryview(item).nbytes
            if part.type == "file":
                assert part.file
                yield FilePart(message, start, end, clean_name(part.file.filename or ""), part.file.file_data)
