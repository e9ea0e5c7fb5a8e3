"""The child process that reads documents, one after the other. Only reader.py starts it.

It imports everything before it enters its sandbox: a parser that a hostile file has taken over cannot open files. If a
parser fails on a file, in whatever way, the file is unreadable, and the child goes on. A file that needs too much
memory is refused, or ends the child; a file that needs too much CPU time ends it.
"""

import encodings
import gc
import importlib
import pkgutil
from collections.abc import Callable
from urllib.parse import unquote_to_bytes

import msgspec

from cadenza.children.confine import ChildLimits, allow_cpu, confine, enter_sandbox, read_limits, serve_tasks
from cadenza.core import o200k
from cadenza.core.files import decode_base64, parse_data_url
from cadenza.core.tokens import Tokenizer
from cadenza.parts.grounding.files.formats.read import read_document, read_page
from cadenza.parts.grounding.files.messages import (
    TASKS,
    Failed,
    FileTask,
    MeasureTask,
    PageTask,
    ParserFault,
    Reply,
    Task,
)
from cadenza.parts.grounding.files.passages import measure_document, rank_document
from cadenza.parts.grounding.files.records import PageText, Unreadable

WINDOWS_ONLY = {"mbcs", "oem"}
TOO_LARGE = "it takes too much memory to read"
NOT_BASE64 = "its file_data is neither a data URL nor base64"
FAULTY = "it is damaged, or has something in it that cannot be read here; save it again, or as PDF or plain text"
OUR_PARSERS = "cadenza.parts.grounding.files."
NAME_CHARS_MAX = 40
_STRING = msgspec.json.Decoder(str)


def main() -> None:
    limits = read_limits()
    confine(limits)
    serve = prepare(limits)
    enter_sandbox()
    serve_tasks(serve, gc.collect)


def prepare(limits: ChildLimits) -> Callable[[bytearray, bytearray], bytes]:
    """Import and read what would be needed later, when it is too late: a text may be in any encoding."""
    for module in pkgutil.iter_modules(encodings.__path__):
        if module.name not in WINDOWS_ONLY:
            importlib.import_module(f"encodings.{module.name}")
    o200k.read_core()
    tokenizer = Tokenizer()
    gc.freeze()  # the collection after each task looks only at what the task made

    def serve(head: bytearray, body: bytearray) -> bytes:
        allow_cpu(limits.cpu_s)
        return serve_task(TASKS.decode(head), body, tokenizer)

    return serve


def serve_task(task: Task, body: bytearray, tokenizer: Tokenizer) -> bytes:
    """The encoded reply to one task. It is a reply too if a parser raises something unforeseen."""
    try:
        return msgspec.msgpack.encode(answer(task, body, tokenizer))
    except Unreadable as error:
        return msgspec.msgpack.encode(Failed(error.reason, part_type=error.part_type))
    except MemoryError:
        return msgspec.msgpack.encode(Failed(TOO_LARGE))
    except Exception as error:  # noqa: BLE001 the task's edge: no list has all that parsers raise for hostile files
        return msgspec.msgpack.encode(Failed(FAULTY, fault_of(error)))


def fault_of(error: Exception) -> ParserFault:
    """The innermost module of ours in the traceback, and the class; not the message, which may quote the document."""
    module, step = "", error.__traceback__
    while step:
        name = str(step.tb_frame.f_globals.get("__name__", ""))
        module = name if name.startswith(OUR_PARSERS) else module
        step = step.tb_next
    return ParserFault(module.rpartition(".")[2][:NAME_CHARS_MAX], type(error).__name__[:NAME_CHARS_MAX])


def answer(task: Task, body: bytearray, tokenizer: Tokenizer) -> Reply:
    match task:
        case MeasureTask():
            return measure_document(read_document(task.name, "", bytes(body)), tokenizer.count)
        case PageTask():
            page = read_page(task.url, task.content_type, bytes(body))
        case FileTask():
            media_type, data = decode_file_data(body)
            body.clear()  # the memory limit is near for the largest files
            page = PageText("", read_document(task.name, media_type, data))
    return rank_document(page.title, page.sections, task.asked, task.budget, tokenizer.count)


def decode_file_data(json_string: bytes | bytearray) -> tuple[str, bytes]:
    """The media type, if there is one, and the bytes of a `file_data`, as it stands in the client's JSON."""
    try:
        text = _STRING.decode(json_string)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise Unreadable("its file_data is not a JSON string") from None
    try:
        url = parse_data_url(text)
    except ValueError:
        raise Unreadable("its data URL has no comma") from None
    payload = text[url.payload_start :] if url else text
    try:
        if url and not url.is_base64:
            data = unquote_to_bytes(payload)
        else:
            data = decode_base64(unquote_to_bytes(payload) if url and "%" in payload else payload.encode("ascii"))
    except ValueError:  # not ASCII, or not base64
        raise Unreadable(NOT_BASE64) from None
    if not data:
        raise Unreadable("it is empty")
    return url.media_type if url else "", data


if __name__ == "__main__":
    main()
