"""The child process that reads documents, one after the other. Only reader.py starts it.

It imports everything first, then gives up files: a parser that is taken over by a hostile file can open nothing. If a
parser fails on a file, in whatever way, the file is unreadable, and the child goes on. Beyond its memory it refuses the
file, or dies; beyond its CPU time it dies.
"""

import encodings
import gc
import importlib
import pkgutil
import re
from collections.abc import Callable

import msgspec
import rs_bpe.bpe  # noqa: F401 the tokenizer imports it when it is needed, which is too late

from cadenza.children.confine import ChildLimits, allow_cpu, confine, enter_sandbox, read_limits, serve_tasks
from cadenza.core.tokens import Tokenizer
from cadenza.grounding.files.file_data import decode_file_data
from cadenza.grounding.files.formats.read import read_document, read_page
from cadenza.grounding.files.messages import (
    TASKS,
    Failed,
    FileTask,
    PageTask,
    ParserFault,
    Passages,
    PassagesTask,
    Reply,
    Task,
)
from cadenza.grounding.files.passages import split_sections
from cadenza.grounding.files.records import Section, Unreadable
from cadenza.grounding.files.select import rank_document

LABEL_CHARS_MAX = 120
TITLE_CHARS_MAX = 300
NOT_TEXT = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")  # control characters, halves of characters
WINDOWS_ONLY = {"mbcs", "oem"}
TOO_LARGE = "it takes too much memory to read"
NO_TEXT = "it has no text"
FAULTY = "it is damaged, or has something in it that cannot be read here; save it again, or as PDF or plain text"
ROOM = "cadenza.grounding.files."
NAME_CHARS_MAX = 40


def main() -> None:
    limits = read_limits()
    confine(limits)
    serve = prepare(limits)
    enter_sandbox()
    serve_tasks(serve, gc.collect)


def prepare(limits: ChildLimits) -> Callable[[bytearray, bytearray], bytes]:
    """Import what Python itself would import later: a text may be in any encoding."""
    for module in pkgutil.iter_modules(encodings.__path__):
        if module.name not in WINDOWS_ONLY:
            importlib.import_module(f"encodings.{module.name}")
    tokenizer = Tokenizer()
    gc.freeze()  # the collection after each task looks only at what the task made

    def serve(head: bytearray, body: bytearray) -> bytes:
        allow_cpu(limits.cpu_s)
        return serve_task(TASKS.decode(head), body, tokenizer)

    return serve


def serve_task(task: Task, body: bytearray, tokenizer: Tokenizer) -> bytes:
    """The reply to one task, as it is sent. Whatever a document makes a parser raise, the reply says so."""
    try:
        return msgspec.msgpack.encode(answer(task, body, tokenizer))
    except Unreadable as error:
        return msgspec.msgpack.encode(Failed(error.reason, part_type=error.part_type))
    except MemoryError:
        return msgspec.msgpack.encode(Failed(TOO_LARGE))
    except Exception as error:  # noqa: BLE001 the task's edge: no list has all that parsers raise for hostile files
        return msgspec.msgpack.encode(Failed(FAULTY, fault_of(error)))


def fault_of(error: Exception) -> ParserFault:
    """Where it was raised, or came up in our code, and its class; never its message, which may quote the document."""
    module, step = "", error.__traceback__
    while step:
        name = str(step.tb_frame.f_globals.get("__name__", ""))
        module = name if name.startswith(ROOM) else module
        step = step.tb_next
    return ParserFault(module.rpartition(".")[2][:NAME_CHARS_MAX], type(error).__name__[:NAME_CHARS_MAX])


def answer(task: Task, body: bytearray, tokenizer: Tokenizer) -> Reply:
    title = ""
    if isinstance(task, PageTask):
        page = read_page(task.url, task.content_type, bytes(body))
        title, found = page.title, page.sections
    elif isinstance(task, PassagesTask):
        found = read_document(task.name, "", bytes(body))
    else:
        found = _read_sent_file(task, body)
    sections = [cleaned for section in found if not (cleaned := _clean(section)).text.isspace() and cleaned.text]
    if not sections:
        raise Unreadable(NO_TEXT)
    if isinstance(task, PassagesTask):
        return Passages(list(split_sections(sections)))
    title = _one_line(title, TITLE_CHARS_MAX)
    return rank_document(title, sections, task.question, task.room, tokenizer.count)


def _read_sent_file(task: FileTask, body: bytearray) -> list[Section]:
    media_type, data = decode_file_data(body)
    body.clear()  # a third of a gigabyte is soon reached
    return read_document(task.name, media_type, data)


def _clean(section: Section) -> Section:
    return Section(_one_line(section.label, LABEL_CHARS_MAX), NOT_TEXT.sub("", section.text))


def _one_line(text: str, chars_max: int) -> str:
    return " ".join(NOT_TEXT.sub(" ", text).split())[:chars_max]


if __name__ == "__main__":
    main()
