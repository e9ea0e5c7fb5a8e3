"""The search of the retention audit finds a canary in every form, wherever it begins, and nothing else."""

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

from cadenza.parts.retention.canaries import TRUNCATED, Canary, CanarySet
from cadenza.parts.retention.search import UNPACKED_BYTES_MAX, WINDOW_BYTES, PlaceSearch

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
    "base64": (lambda text: base64.b64encode(text.split()[0].encode()), "base64"),
    "base64, one byte later": (lambda text: base64.b64encode(b"1" + text.split()[0].encode()), "base64"),
    "base64, two bytes later": (lambda text: base64.b64encode(b"12" + text.split()[0].encode()), "base64"),
    "base64 for URLs": (lambda text: base64.urlsafe_b64encode(b"???" + text.encode()), "base64"),
    "base64 in lines": (lambda text: base64.encodebytes(b"+" * 48 + text.split()[0].encode()), "base64"),
    "gzip": (lambda text: gzip.compress(text.encode()), "plain in gzip"),
    "zlib": (lambda text: zlib.compress(text.encode()), "plain in deflate"),
    "bzip2": (lambda text: bz2.compress(text.encode()), "plain in bzip2"),
    "xz": (lambda text: lzma.compress(text.encode()), "plain in xz"),
    "a document": (zipped, "plain in ZIP"),
    "base64 in gzip": (lambda text: gzip.compress(base64.b64encode(text.encode())), "base64 in gzip"),
    "gzip in a document": (lambda text: gzip.compress(zipped(text)), "plain in ZIP in gzip"),
}


@pytest.fixture
def canaries() -> CanarySet:
    return CanarySet()


@pytest.fixture
def canary(canaries: CanarySet) -> Canary:
    for number in range(30):
        canaries.make(f"another {number}")
    return canaries.make("a user message")


def search(canaries: CanarySet, *pieces: bytes) -> PlaceSearch:
    place = PlaceSearch(canaries, "a log")
    with place.feeding("a.log") as feed:
        for piece in pieces:
            feed(piece)
    return place


def found_in(place: PlaceSearch) -> set[tuple[str, str]]:
    return {(hit.canary, hit.form) for hit in place.hits}


@pytest.mark.parametrize("name", FORMS)
def test_every_form_is_found(name: str, canaries: CanarySet, canary: Canary) -> None:
    """Each form is found and named between other bytes, with the canary that it is a form of."""
    write, form = FORMS[name]
    data = JUNK + write(canary.text) + JUNK
    place = search(canaries, data)
    assert (canary.name, form) in found_in(place)
    assert {hit.canary for hit in place.hits} == {canary.name}
    assert place.size_bytes == len(data)


def test_raw_deflate_is_found_at_the_beginning(canaries: CanarySet, canary: Canary) -> None:
    """Deflate without a header is found if a value or file begins with it."""
    assert (canary.name, "plain in deflate") in found_in(search(canaries, raw_deflate(canary.text)))


@pytest.mark.parametrize("write", [str.encode, lambda text: gzip.compress(text.encode())], ids=["plain", "gzip"])
@pytest.mark.parametrize("before", [0, WINDOW_BYTES - 10, WINDOW_BYTES, 2 * WINDOW_BYTES - 10, 2 * WINDOW_BYTES])
def test_a_canary_is_found_once_across_windows(
    write: Callable[[str], bytes], before: int, canaries: CanarySet, canary: Canary
) -> None:
    """Wherever one window of a large file ends and the next begins, a canary is found once."""
    data = b"-" * before + write(canary.word) + b"-" * 300
    place = search(canaries, data[: before + 10], data[before + 10 :])
    assert list(place.hits.values()) == [1]
    assert {hit.canary for hit in place.hits} == {canary.name}


def test_a_canary_that_is_cut_off_is_a_hit(canaries: CanarySet, canary: Canary) -> None:
    """A log line that ends in the middle of a canary is a leak too; fewer than 12 characters are not seen."""
    assert found_in(search(canaries, canary.word[:12].encode())) == {(TRUNCATED, "plain")}
    assert found_in(search(canaries, canary.word[:11].encode())) == set()


def test_a_secret_is_found_like_a_canary(canaries: CanarySet) -> None:
    """A password or key is looked for in the same forms; one that is too short is not."""
    canaries.add_secret("the password", "correct>horse?battery")
    canaries.add_secret("a flag", "on")
    data = base64.urlsafe_b64encode(b"x" + b"correct>horse?battery") + b" correct>horse?battery on"
    assert found_in(search(canaries, data)) == {("the password", "base64"), ("the password", "plain")}


def test_other_data_has_no_hits(canaries: CanarySet, canary: Canary) -> None:
    """Random bytes, text and the canaries of another run are no hits, and nothing of them is skipped."""
    place = search(canaries, os.urandom(2**20) + __doc__.encode() + CanarySet().make("another").text.encode())
    assert (dict(place.hits), place.skipped) == ({}, [])


def test_what_cannot_be_decompressed_is_told(canaries: CanarySet, canary: Canary) -> None:
    """Zstandard, archives with a password, and what grows beyond a bound are listed, not silently passed over."""
    locked = bytearray(zipped("text"))
    locked[6] |= 1
    place = search(
        canaries, b"\x28\xb5\x2f\xfd" + bytes(50) + locked + gzip.compress(bytes(UNPACKED_BYTES_MAX + 2**23), 1)
    )
    kinds = [reason.removeprefix("a.log: ").partition(" data")[0] for reason in place.skipped]
    assert kinds == ["Zstandard", "ZIP", "gzip"]


def test_many_hits_are_counted(canaries: CanarySet, canary: Canary) -> None:
    """A place full of one canary has one hit, with a count."""
    place = search(canaries, canary.word.encode() * 5000)
    assert list(place.hits.values()) == [5000]
