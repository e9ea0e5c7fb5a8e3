"""The search of the retention audit finds a needle in every form, wherever it begins, and nothing else."""

import base64
import bz2
import gzip
import io
import json
import lzma
import os
import urllib.parse
import zipfile
import zlib
from collections.abc import Callable

import pytest

from cadenza.audit.needles import TRUNCATED, Needles
from cadenza.audit.places import search_bytes
from cadenza.audit.search import HITS_MAX, READ_BYTES, PlaceSearch, Searched

PLACE = "a log"
JUNK = os.urandom(999)


def every_character(form: str) -> Callable[[str], bytes]:
    return lambda text: "".join(form.format(ord(character)) for character in text).encode()


def zipped(text: str) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("word/document.xml", text)
    return file.getvalue()


def raw_deflate(text: str) -> bytes:
    packing = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packing.compress(text.encode()) + packing.flush()


FORMS: dict[str, tuple[Callable[[str], bytes], str]] = {
    "UTF-8": (str.encode, "plain"),
    "JSON": (lambda text: json.dumps({"content": text}).encode(), "plain"),
    "a query": (lambda text: urllib.parse.urlencode({"q": text}).encode(), "plain"),
    "upper case": (lambda text: text.upper().encode(), "upper case"),
    "JSON escapes": (every_character("\\u{:04x}"), "JSON escapes"),
    "JSON escapes, upper case": (every_character("\\u{:04X}"), "JSON escapes"),
    "percent escapes": (every_character("%{:02x}"), "URL-encoded"),
    "percent escapes, upper case": (every_character("%{:02X}"), "URL-encoded"),
    "hexadecimal": (lambda text: text.encode().hex().encode(), "hexadecimal"),
    "hexadecimal, upper case": (lambda text: text.encode().hex().upper().encode(), "hexadecimal"),
    "UTF-16 LE": (lambda text: text.encode("utf-16-le"), "UTF-16"),
    "UTF-16 BE": (lambda text: text.encode("utf-16-be"), "UTF-16"),
    "base64": (lambda text: base64.b64encode(text.encode()), "base64"),
    "base64, one byte later": (lambda text: base64.b64encode(b"1" + text.encode()), "base64"),
    "base64, two bytes later": (lambda text: base64.b64encode(b"12" + text.encode()), "base64"),
    "base64 for URLs": (lambda text: base64.urlsafe_b64encode(b"???" + text.encode()), "base64"),
    "base64 in lines": (lambda text: base64.encodebytes(b"+" * 48 + text.encode()), "base64"),
    "gzip": (lambda text: gzip.compress(text.encode()), "plain in gzip"),
    "zlib": (lambda text: zlib.compress(text.encode()), "plain in deflate"),
    "bzip2": (lambda text: bz2.compress(text.encode()), "plain in bzip2"),
    "xz": (lambda text: lzma.compress(text.encode()), "plain in xz"),
    "a document": (zipped, "plain in ZIP"),
    "base64 in gzip": (lambda text: gzip.compress(base64.b64encode(text.encode())), "base64 in gzip"),
    "gzip in a document": (lambda text: gzip.compress(zipped(text)), "plain in ZIP in gzip"),
}


def forms_of(searched: Searched) -> set[tuple[str, str]]:
    return {(hit.needle, hit.form) for hit in searched.hits}


@pytest.mark.parametrize("name", FORMS)
def test_every_form_is_found(name: str) -> None:
    """Each form is found and named between other bytes, with the needle that it is a form of."""
    needles = Needles()
    others = [needles.make(f"other {number}") for number in range(30)]
    needle = needles.make("a user message")
    write, form = FORMS[name]
    data = JUNK + write(needle.text) + JUNK
    searched = search_bytes(needles, PLACE, data)
    assert (needle.name, form) in forms_of(searched)
    assert {hit.needle for hit in searched.hits} == {needle.name}
    assert all(0 <= hit.offset < len(data) for hit in searched.hits)
    assert searched.size_bytes == len(data)
    assert len({one.word for one in [*others, needle]}) == 31


def test_raw_deflate_is_found_at_the_beginning() -> None:
    """Deflate without a header is found if a value or file begins with it."""
    needles = Needles()
    needle = needles.make("a user message")
    assert ("a user message", "plain in deflate") in forms_of(search_bytes(needles, PLACE, raw_deflate(needle.text)))


@pytest.mark.parametrize("write", [str.encode, lambda text: gzip.compress(text.encode())], ids=["plain", "gzip"])
def test_a_needle_is_found_across_pieces(write: Callable[[str], bytes]) -> None:
    """Wherever one piece ends and the next begins, each needle is found once, at the same offset."""
    needles = Needles()
    needle = needles.make("a user message")
    data = b"-" * 50 + write(needle.word) + b"-" * 150
    whole = search_bytes(needles, PLACE, data).hits
    assert len(whole) == 1
    for cut in range(len(data)):
        assert search_bytes(needles, PLACE, [data[:cut], data[cut:]]).hits == whole
    assert search_bytes(needles, PLACE, [data[at : at + 1] for at in range(len(data))]).hits == whole


def test_offsets_after_zeros_are_right() -> None:
    """Pieces of zeros, which are passed over, count in the offset of a needle that begins before or after them."""
    needles = Needles()
    word = needles.make("a user message").word.encode()
    pieces = [b"--" + word[:5], word[5:], bytes(5000), bytes(50), bytes(5000), word]
    assert [hit.offset for hit in search_bytes(needles, PLACE, pieces).hits] == [2, 2 + len(word) + 10_050]


def test_a_needle_that_is_cut_off_is_a_hit() -> None:
    """A log line that ends in the middle of a needle is a leak too."""
    needles = Needles()
    needle = needles.make("a user message")
    assert [hit.needle for hit in search_bytes(needles, PLACE, needle.word[:-1].encode()).hits] == [TRUNCATED]


def test_a_secret_is_found_like_a_needle() -> None:
    """A password or key is looked for in the same forms."""
    needles = Needles()
    needles.add_secret("the password", "correct>horse?battery")
    data = base64.urlsafe_b64encode(b"x" + b"correct>horse?battery") + b" correct>horse?battery"
    assert forms_of(search_bytes(needles, PLACE, data)) == {("the password", "base64"), ("the password", "plain")}


def test_other_data_has_no_hits() -> None:
    """Random bytes, text and the needles of another run are no hits."""
    needles, others = Needles(), Needles()
    needles.make("a user message")
    data = os.urandom(READ_BYTES) + __doc__.encode() + others.make("a user message").text.encode()
    searched = search_bytes(needles, PLACE, data)
    assert (searched.hits, searched.skipped) == ([], [])


def test_what_cannot_be_decompressed_is_said() -> None:
    """Zstandard and archives with a password are listed, not silently passed over."""
    needles = Needles()
    needles.make("a user message")
    locked = bytearray(zipped("text"))
    locked[6] |= 1
    searched = search_bytes(needles, PLACE, b"\x28\xb5\x2f\xfd" + bytes(50) + locked)
    assert [reason.partition(" data")[0] for reason in searched.skipped] == ["Zstandard", "encrypted ZIP"]


def test_a_bomb_is_bounded() -> None:
    """Compressed data that grows without end is read up to a bound, which is said."""
    needles = Needles()
    needles.make("a user message")
    search = PlaceSearch(needles, PLACE, unpacked_bytes_max=2**20)
    search.add(gzip.compress(bytes(2**22)))
    assert search.result().skipped == ["compressed data beyond 1 MiB, decompressed"]


def test_many_hits_are_bounded() -> None:
    """A place full of needles lists a thousand hits and says that there are more."""
    needles = Needles()
    needle = needles.make("a user message")
    searched = search_bytes(needles, PLACE, needle.word.encode() * (HITS_MAX + 5))
    assert len(searched.hits) == HITS_MAX
    assert searched.skipped == [f"more than {HITS_MAX} hits: the others are not listed (5)"]
