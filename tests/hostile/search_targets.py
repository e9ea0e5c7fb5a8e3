"""What sees a client's bytes, or those of a page or a file that a client names: each function, and a grammar for it."""

import base64
import io
import math
import time
import zipfile
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, date, datetime
from functools import cache, partial

import msgspec

from cadenza.core.activity import read_filter, read_place
from cadenza.core.chat import find_user_question
from cadenza.core.codes import is_well_formed
from cadenza.core.file_tokens import tokens_of_file, tokens_of_image, tokens_of_sound
from cadenza.core.files import clean_name, parse_data_url
from cadenza.core.grounding import Source
from cadenza.core.image_tokens import HEAD_BYTES, pixels_of
from cadenza.core.query import QUERY_BYTES_MAX, read_query
from cadenza.core.sent import texts_of_message
from cadenza.core.spans import parse_span
from cadenza.core.tokens import Tokenizer
from cadenza.core.tool_calls import unwrap_id, wrap_id
from cadenza.gateway.auth import presented_key
from cadenza.gateway.chat import LARGE_BYTES, STEPS_MAX
from cadenza.gateway.endpoints import is_api, unknown_path
from cadenza.gateway.large.weight import Steps, is_light
from cadenza.gateway.uploads import UNPAID_BYTES
from cadenza.gateway.validate import parse_chat
from cadenza.http.exchange import Request
from cadenza.http.headers import TrustedProxies, is_local
from cadenza.http.request_parser import Progress, RequestParser
from cadenza.parts.grounding.answer import find_citations
from cadenza.parts.grounding.files.child import decode_file_data
from cadenza.parts.grounding.files.formats.charsets import guess_charset
from cadenza.parts.grounding.files.formats.read import read_document, read_page
from cadenza.parts.grounding.files.messages import TokenBudget
from cadenza.parts.grounding.files.passages import rank_document
from cadenza.parts.grounding.files.questions import AskedOfFiles
from cadenza.parts.grounding.files.records import Section
from cadenza.parts.grounding.search.engines.web import plain_text
from cadenza.parts.grounding.search.intent.decision import decide
from cadenza.parts.grounding.search.intent.query import make_query
from cadenza.parts.grounding.search.pages.addresses import parse_target
from cadenza.parts.grounding.search.pages.robots import is_allowed, parse_rules
from cadenza.parts.otlp.trace_context import read_parent
from cadenza.parts.payments.stripe import check_signature
from cadenza.parts.payments.voucher_codes import normal_code
from cadenza.parts.protocols.translators import TRANSLATORS
from cadenza.parts.site.chat.markdown.messages import TASK_CHARS_MAX, RenderTask
from cadenza.parts.site.chat.markdown.render import HtmlRenderer
from cadenza.parts.site.cookies import Origin, read_cookie
from tests import made_files as made
from tests.hostile.grammar import Grammar, Growth, Recipe
from tests.hostile.head_maker import FIELDS, QUERIES, TAILS
from tests.hostile.head_maker import HEAD_BYTES as HTTP_HEAD_BYTES
from tests.hostile.search import Target
from tests.hostile.test_imports import Pages

KIB, MIB = 1024, 1024 * 1024
TODAY = date(2026, 11, 19)
SOURCES = [Source("https://a.example/", "A")] * 3

# What the search has found and is mended: tried first.
FOUND_IN_MARKDOWN = (Recipe(b"a", (Growth(1, b"<!--", 1.0),)),)  # a line without an end
FOUND_IN_PAGES = (Recipe(b"<html>", (Growth(6, b"<blockquote>words, words", 1.0),)),)


class Requests:
    """Receives what a connection reads."""

    def __init__(self) -> None:
        self.all: list[Request] = []

    def receive_head(self, request: Request, _whole: bytes = b"", /) -> None:
        self.all.append(request)

    def receive_body(self, data: bytes, /) -> None:
        pass

    def receive_end(self) -> None:
        pass


def read_heads(data: bytes, piece_bytes: int = MIB) -> None:
    """What each head goes through before its key is known. The bytes arrive in pieces."""
    requests = Requests()
    parser = RequestParser(requests, HTTP_HEAD_BYTES)
    with suppress(Exception):
        for start in range(0, len(data), piece_bytes):
            progress = parser.read(data[start : start + piece_bytes])
            while progress is not Progress.NEEDS_INPUT:
                progress = parser.read()
    for request in requests.all:
        fields, headers = request.fields, request.headers
        texts = {name.decode("latin-1"): value.decode("latin-1") for name, value in headers.items()}
        is_local("::1", fields)
        TrustedProxies().client_address("::1", fields)
        TrustedProxies().scheme("::1", "http", headers.get(b"x-forwarded-proto"))
        read_parent(fields)
        is_well_formed(presented_key(headers))
        read_cookie(texts.get("cookie", ""), "cadenza_session")
        assert Origin(texts.get("sec-fetch-site"), texts.get("origin"), texts.get("host")).is_foreign in (True, False)
        is_api(request.path)
        unknown_path(request.path, [])
        with suppress(Exception):
            read_query(request.query)
        with suppress(Exception):
            check_signature(b"k", b"", texts["stripe-signature"], 0)


def read_usage_query(query: bytes) -> None:
    asked = read_query(query)
    for read in (
        lambda: parse_span(asked.get("start"), asked.get("end"), datetime.now(UTC)),
        lambda: read_place(asked.get("cursor")),
        lambda: read_filter(parse_span(None, None, datetime.now(UTC)), asked),
    ):
        with suppress(ValueError):
            read()


def read_body(body: bytes, protocol: str = "") -> None:
    """What happens on the event loop with a body, up to the hold of its credit; a heavy one goes to a child."""
    if len(body) > LARGE_BYTES or not is_light(body):
        return
    steps_max = math.inf if not protocol and len(body) <= UNPAID_BYTES else STEPS_MAX
    chat = parse_chat(bytes(TRANSLATORS[protocol](body, steps_max).chat) if protocol else body, Steps(steps_max))
    if isinstance(chat.texts, list):
        find_user_question(chat.messages, chat.texts)


def parse_in_child(body: bytes, protocol: str) -> None:
    chat = bytes(TRANSLATORS[protocol](body, math.inf).chat) if protocol else body
    for raw in parse_chat(chat).messages:
        texts_of_message(raw)


def read_names(text: bytes) -> None:
    name = text.decode("latin-1")
    clean_name(name)
    normal_code(name)
    unwrap_id(wrap_id(name))
    with suppress(ValueError):
        parse_data_url(name)


def read_data(data: bytes) -> None:
    """The data of images, sounds and files, as it stands in the JSON."""
    raw = msgspec.Raw(b'"%b"' % data)
    tokens_of_image(raw, is_low=False)
    tokens_of_sound(raw)
    tokens_of_file(raw)


def ask(question: str) -> None:
    decide([question, question], TODAY)
    make_query([question, question], TODAY)


def rank(text: str) -> None:
    rank_document("", [Section("", text)], AskedOfFiles("sea a"), TokenBudget(2000, 500), len)


def cite(answer: str) -> None:
    find_citations(answer, SOURCES)


def check_robots(file: bytes) -> None:
    is_allowed(parse_rules(file), "/" + "ab" * 500)


def read_web_page(page: bytes) -> None:
    read_page("https://a.example/", "text/html", page)


def office(made_file: bytes, name: str, texts: str) -> Target:
    """A part of an Office file, which is packed again before it is measured."""
    with zipfile.ZipFile(io.BytesIO(made_file)) as archive:
        entries = {one: archive.read(one) for one in archive.namelist()}
    grammar = Grammar((entries[name],), pieces(f"{texts} <a>{{|}}</a> &amp; a\N{CURRENCY SIGN} <b/>"))
    return Target(read_file, grammar, 64 * KIB, lambda part: made.make_zip({**entries, name: part}))


def read_file(data: bytes, name: str = "a") -> None:
    read_document(name, "", data)


def document(name: str, samples: tuple[bytes, ...], texts: tuple[bytes, ...]) -> Target:
    return Target(partial(read_file, name=name), Grammar(samples, texts), 64 * KIB)


def on_text(run: Callable[[str], object]) -> Callable[[bytes], object]:
    return lambda data: run(data.decode(errors="replace"))


def pieces(texts: str) -> tuple[bytes, ...]:
    """Between spaces; one that is part of a piece is written as a currency sign."""
    return tuple(text.replace("\N{CURRENCY SIGN}", " ").encode() for text in texts.split(" "))


pages, renderer, tokenizer = cache(Pages), cache(HtmlRenderer), cache(Tokenizer)


def clock_with_pages() -> float:
    return time.process_time() + pages().used_us / 1e6


def render(text: str) -> None:
    for is_end in (True, False):
        renderer().render_complete(RenderTask(text, is_end=is_end))


HEAD = b"POST /v1/chat?a=1 HTTP/1.1\r\nhost: here\r\n"
HEADS = Grammar(
    (
        *(
            b"%b%b: %b\r\n\r\n" % (HEAD, name.encode(), text.replace("|", "").encode("latin-1"))
            for name, texts in FIELDS.items()
            for text in texts
        ),
        (HEAD + b"content-length: 3\r\n\r\nabc") * 2,
    ),
    (
        *(text.encode("latin-1") for text in (*QUERIES, *TAILS)),
        *pieces("a:¤b\r\n \r\n x{i}:¤\r\n x-forwarded-for:¤::1\r\n cookie:¤a=b\r\n ¤ \t , a=b,"),
    ),
)
CHUNKED = Grammar(
    (HEAD + b"transfer-encoding: chunked\r\n\r\n1\r\na\r\n0\r\na: b\r\n\r\n",),
    (HEAD, *pieces("1\r\na\r\n 10\r\n0123456789abcdef\r\n 1;a=b\r\na\r\n ;a a:¤b\r\n \r\n 0 \n")),
)
QUERY = Grammar(
    (b"start=2026-01-01&cursor=1-a&status=200",),
    (*(text.encode("latin-1") for text in QUERIES), *pieces("start= 0 - : Z T .")),
)
JPEG = base64.b64encode(b"\xff\xd8" + b"\xff\xe0\x00\x02" * 4)
SEGMENTS = base64.b64encode(b"\xff\xe0\x00\x02" * 3)
IMAGE = b"data:image/jpeg;base64," + JPEG
IN_STRINGS = (SEGMENTS, *pieces("abc \\/ = \\ud800 %41 https://a.example/¤"))


def bodies(*samples: str) -> Grammar:
    """Of JSON, with an image where it says so."""
    given = (sample.replace("URL", IMAGE.decode()).replace("JPEG", JPEG.decode()) for sample in samples)
    return Grammar(
        tuple("".join(line.strip() for line in one.splitlines()).encode() for one in given), IN_STRINGS, True
    )


CHAT = bodies(
    """{"model":"auto","messages":[{"role":"user","content":"hi"},{"role":"assistant","content":null,
    "tool_calls":[{"id":"c{i}","type":"function","function":{"name":"f","arguments":"{}"}}]},
    {"role":"tool","tool_call_id":"c{i}","content":"a"}],
    "tools":[{"type":"function","function":{"name":"f{i}","parameters":{"type":"object","required":["a"]}}},
    {"type":"custom","custom":{"name":"g{i}"}}],"tool_choice":{"type":"function","function":{"name":"fx"}}}""",
    """{"messages":[{"role":"system","content":"s"},{"role":"user","content":[
    {"type":"image_url","image_url":{"url":"URL","detail":"low"}},{"type":"text","text":"a"},
    {"type":"file","file":{"filename":"a.txt","file_data":"URL"}},
    {"type":"input_audio","input_audio":{"data":"AAAA","format":"wav"}}]},{"role":"developer","content":"d"}],
    "stop":["a"],"metadata":{"a":"b"},"modalities":["text"],"logit_bias":{"1":2},"x":"y",
    "response_format":{"type":"json_schema","json_schema":{"name":"s","schema":{"enum":["a"]}}}}""",
    """{"messages":[{"role":"assistant","content":[{"type":"refusal","refusal":"no"},{"type":"text","text":"a"}],
    "refusal":"r","annotations":[{"type":"url_citation"}],"reasoning_details":[{"a":1}]},
    {"role":"user","content":"a"}]}""",
)
RESPONSES = bodies(
    """{"input":"a","tools":[{"type":"namespace","name":"n","tools":[{"type":"function","name":"f{i}"}]}]}""",
    """{"input":[{"type":"function_call","call_id":"c{i}","name":"f","namespace":"n","arguments":"{}"},
    {"type":"function_call_output","call_id":"c{i}","output":[{"type":"input_text","text":"a"}]},
    {"type":"reasoning","summary":[{"type":"summary_text","text":"a"}],"encrypted_content":"e30="}],"instructions":"i",
    "tools":[{"type":"namespace","name":"n","tools":[{"type":"function","name":"f{i}","parameters":{"type":"object"}}]},
    {"type":"custom","name":"g{i}","format":{"type":"text"}}],"tool_choice":{"type":"allowed_tools","mode":"auto",
    "tools":[{"type":"function","name":"f","namespace":"n"}]},"include":["a"],
    "text":{"format":{"type":"json_schema","schema":{"a":["b"]}}}}""",
    """{"input":[{"role":"assistant","content":[{"type":"output_text","text":"a"}]},{"role":"user","content":[
    {"type":"input_image","image_url":"URL"},{"type":"input_file","filename":"a","file_data":"AAAA"},
    {"type":"input_text","text":"b"}]},{"type":"reasoning","summary":[],"content":[{"type":"reasoning_text","text":"a"}]}],
    "metadata":{"a":"b"}}""",
)
MESSAGES = bodies(
    """{"model":"auto","max_tokens":9,"system":[{"type":"text","text":"s"}],"messages":[
    {"role":"assistant","content":[{"type":"tool_use","id":"c{i}","name":"f","input":{"a":1}}]},
    {"role":"user","content":[{"type":"tool_result","tool_use_id":"c{i}","content":[{"type":"text","text":"a"}]},
    {"type":"text","text":"b"}]},{"role":"user","content":"hi"}],
    "tools":[{"name":"f{i}","description":"d","input_schema":{"type":"object","properties":{"a":{"enum":["b"]}}}}],
    "tool_choice":{"type":"tool","name":"fx"},"stop_sequences":["a"],"metadata":{"user_id":"u"}}""",
    """{"max_tokens":9,"messages":[{"role":"user","content":[
    {"type":"image","source":{"type":"base64","media_type":"image/jpeg","data":"JPEG"}},
    {"type":"document","source":{"type":"text","media_type":"text/plain","data":"a"}},{"type":"text","text":"b"}]},
    {"role":"assistant","content":[{"type":"thinking","thinking":"t","signature":"s"},{"type":"text","text":"a"}]}]}""",
)
EXPORT = bodies(
    """{"format":"cadenza-chat","version":1,"conversations":[{"title":"a","head":"m","messages":{"m":{"role":"user",
    "text":"x","files":[{"name":"a.txt","type":"text/plain","path":"p"}],"sources":[{"url":"u","title":"t"}]}}},
    {"title":"b","messages":{"a":{"role":"user","text":"x"}}}]}"""
)._replace(fields=pieces('"m{i}":{"role":"user","text":"x","parent":"m{i-1}"}, "m{i}":{"role":"user","text":"x"},'))
MARKDOWN = Grammar(
    (
        b"# a\n\n- b\n\n| a | b |\n|---|---|\n| c | d |\n\ntext *c* $x^2$\n",
        b"\\(x\\)",
        *(
            b"```%b\nx = 1\n```\n" % name
            for name in pieces("python js html c sql yaml json bash rust markdown perl ruby php tex css xml")
        ),
    ),
    pieces(
        "* ** _ ` ```\n ~~ [ ] ( ) [a](b) ![ < > \n >¤ -¤ 1.¤ ¤¤¤¤ | |- \\ &amp; &# # a¤ -¤[x]¤ \t"
        " [{|}](a) *{|}* $a_b$¤ $ $$"
        " \\( \\) \\[ \\frac{{|}}{2} {{|}} ^ _{ \\left( \\begin{matrix} \\end{matrix} & \\\\ \\sqrt"
        " ' \" // /* = f' {%¤ <!-- <a¤"
    ),
)
HTML = pieces(
    "<p>a <div>{|}</div> <b> </b> </p> <table> <tr><td>1 <li> <ul>{|}</ul> <a¤href='x'>y</a> <!--"
    " --> <![CDATA[ <script>"
    " </script> <style> < </ & &amp; &#x a¤b¤ \n <pre> <br> <title> <h1>a</h1> =' <a¤ b=\""
    " <td¤colspan=99¤rowspan=99> <option>"
    " <svg> <math> <template> <select> <form> <article> <nav> .¤ | \0 <? <!"
)
MAIL = pieces(
    'a:¤b\n From:¤a\n =?utf-8?q?a?=¤ =? ( ) < > " , ; \n¤ \n -- ¤a@b.c, : \\ =\n =41'
    " filename*{i}=a; --q\n \r a ¤ [ ] @ ."
    " Content-Type:¤multipart/mixed;¤boundary=q\n\n--q\n charset= '' %41 received:¤a\n"
)
TABLE = pieces(', ; \t " "" \n a 1,2\n a,b,c\n ¤ | \r \0 é .¤ a¤b¤ #¤h\n = - ```\n \f ---| \x1b$B \xff')
PLAIN = pieces(
    "a¤ word¤ .¤ ?¤ \n \n\n \" ' ` >¤ http://a.b/ www. a.b¤ / : @ ( ) [ ] 2026¤ what¤is¤ - , … 漢 # * _ 1 % search¤"
)
ROBOTS = pieces(
    "User-agent:¤*\n user-agent:¤cadenza\n Disallow:¤/a*\n Allow:¤/ * a $ %41 % \n # ¤ :"
    " Sitemap:¤x\n disalow \r / user¤agent¤ -"
)
QUESTION, CITING = (b"What is new in Python? See https://a.example/x.",), (b"It is so [1].",)
MARKS = pieces("[1] [ ] 1 , - ¤ ` ``` \n ^ a [1,¤2] [^1] 【1†a】 †")
URLS = Grammar((b"https://a.example:80/b?c#d",), pieces("a . / : % %41 @ [ ] ? # ü xn-- 0x \\ .. ¤"))
PICTURES = Grammar(
    (b"\xff\xd8\xff\xe0\x00\x02", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"),
    (b"\xff\xe0\x00\x02", b"\xff\xe1\x00\x03a", b"\xff", b"\xff\xc0\x00\x04ab", b"\0"),
)
DATA = Grammar(
    (IMAGE, b"data:application/pdf;base64,JVBERi0xLjc=", b"data:audio/wav;base64,UklGRg=="),
    (SEGMENTS, *pieces("\\/ = AAAA L1BhZ2U ;a=b , %41")),
)
NAMES = Grammar(
    (b"../a/b.txt", b"data:text/plain;base64,AAAA", b"call_abc", b"CDZ-ABCD-EFGH"),
    pieces("/ \\ . ¤ a - \n \x9f ; _ A1"),
)
PAGE = b"<html><title>T</title><main><p>Some words, and more.<table><tr><td>1<td>2</table><ul><li>a</ul></main>"
CHARSETS = Grammar(
    ("Привет мир".encode("koi8-r"), "日本".encode("shift_jis")),
    (b"\xd0", b"\xff", b"a", b"\x81\x40", b"\x1b$B", b"\n", b"\x80"),
)
FILE_DATA = Grammar((b'"data:text/plain;base64,QUJD"', b'"data:,a%41"'), pieces("%41 A = \\n ¤ % ; ,"))
PDF = pieces(
    "1¤0¤obj\n << >> [ ] endobj\n stream\n /Kids[3¤0¤R] 3¤0¤R¤ (a) ( % \n xref\n trailer\n /Type/Page¤ endstream\n"
    " 0000000000¤65535¤f¤\n"
)

TARGETS: dict[str, Target] = {
    "heads": Target(read_heads, HEADS, 64 * KIB, is_on_loop=True),
    "heads in pieces": Target(partial(read_heads, piece_bytes=50), HEADS, 64 * KIB),
    "chunks": Target(read_heads, CHUNKED, 256 * KIB, is_on_loop=True),
    "queries": Target(read_usage_query, QUERY, QUERY_BYTES_MAX, is_on_loop=True),
    "weights": Target(is_light, Grammar((b'{"a":"b"}',), pieces('" \\" , a \\ { :1')), MIB, is_on_loop=True),
    "chat bodies": Target(read_body, CHAT, MIB, is_on_loop=True),
    "responses bodies": Target(partial(read_body, protocol="responses"), RESPONSES, MIB, is_on_loop=True),
    "messages bodies": Target(partial(read_body, protocol="messages"), MESSAGES, MIB, is_on_loop=True),
    "count_tokens bodies": Target(partial(read_body, protocol="count_tokens"), MESSAGES, MIB, is_on_loop=True),
    "chat in a child": Target(partial(parse_in_child, protocol=""), CHAT, MIB),
    "responses in a child": Target(partial(parse_in_child, protocol="responses"), RESPONSES, MIB),
    "messages in a child": Target(partial(parse_in_child, protocol="messages"), MESSAGES, MIB),
    "images": Target(pixels_of, PICTURES, HEAD_BYTES, is_on_loop=True),
    "data": Target(read_data, DATA, MIB, is_on_loop=True),
    "names": Target(read_names, NAMES, 64 * KIB, is_on_loop=True),
    "questions": Target(on_text(ask), Grammar(QUESTION, PLAIN), 64 * KIB, is_on_loop=True),
    "token counts": Target(on_text(lambda text: tokenizer().count(text)), Grammar(QUESTION, PLAIN), 256 * KIB),
    "markdown": Target(on_text(render), MARKDOWN, TASK_CHARS_MAX, found=FOUND_IN_MARKDOWN),
    "citations": Target(on_text(cite), Grammar(CITING, MARKS), 256 * KIB, is_on_loop=True),
    "snippets": Target(on_text(partial(plain_text, chars_max=300)), Grammar((PAGE,), HTML), 256 * KIB, is_on_loop=True),
    "addresses": Target(on_text(parse_target), URLS, 16 * KIB, is_on_loop=True),
    "robots": Target(check_robots, Grammar((b"User-agent: *\nDisallow: /a\nAllow: /b*c$\n",), ROBOTS), 256 * KIB),
    "web pages": Target(read_web_page, Grammar((PAGE,), HTML), 64 * KIB, found=FOUND_IN_PAGES),
    "html files": document("a.html", (PAGE,), HTML),
    "mail": document("a.eml", (made.make_eml({"b.html": b"<p>b", "a.csv": b"a,b\n1,2"}), b"From: a\n\ntext\n"), MAIL),
    "text files": document("a.txt", (b"some text\n", b"a,b\n1,2\n"), TABLE),
    "tables": document("a.csv", (b"a,b\n1,2\n",), TABLE),
    "json files": Target(partial(read_file, name="a.json"), bodies('{"a":[1,{"b":"c"}],"d":{"e":"f"}}'), 256 * KIB),
    "passages": Target(
        on_text(rank), Grammar((b"The sea.\n\n| a | b |\n|---|---|\n| c | d |\n",), TABLE + PLAIN), 256 * KIB
    ),
    "charsets": Target(guess_charset, CHARSETS, 256 * KIB),
    "file data": Target(decode_file_data, FILE_DATA, 256 * KIB),
    "word": office(
        made.make_docx(), "word/document.xml", "<w:p><w:r><w:t>a</w:t></w:r></w:p> <w:tbl>{|}</w:tbl> <w:tab/>"
    ),
    "sheets": office(
        made.make_xlsx(),
        "xl/worksheets/sheet1.xml",
        '<row><c¤r="XFD{i}"><v>1</v></c></row> <c¤t="inlineStr"><is><t>a</t></is></c> <mergeCell¤ref="A1:XFD{i}"/>',
    ),
    "formats of cells": office(
        made.make_xlsx(),
        "xl/styles.xml",
        '<xf¤numFmtId="{i}"/> <numFmt¤numFmtId="{i}"¤formatCode="0"/> yy; &quot; [ 0 \\',
    ),
    "slides": office(
        made.make_pptx(),
        "ppt/slides/slide1.xml",
        "<a:p><a:r><a:t>a</a:t></a:r></a:p> <p:sp>{|}</p:sp> <a:tbl>{|}</a:tbl> <a:br/>",
    ),
    "pdf": document("a.pdf", (made.make_pdf(["text"]),), PDF),
    "imports": Target(lambda data: pages().take(data).us * 1000, EXPORT, MIB, clock=clock_with_pages),
}
