"""The body of a page: decompressed within its bound."""

import contextlib
import gzip
import tracemalloc
import zlib
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadenza.grounding.search.pages.client import MEMBERS_MAX, SLICE_BYTES, BodyLimit, ByteBudget, FetchedBody
from cadenza.grounding.search.records import FetchFailed

MIB = 1024 * 1024


def body_of(
    bytes_max: int = MIB, coding: bytes = b"gzip", *, truncates: bool = False, held: int = 64 * MIB
) -> FetchedBody:
    return FetchedBody(BodyLimit(bytes_max, truncates), coding, ByteBudget(held))


def split(data: bytes, places: list[int]) -> list[bytes]:
    ends = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    return [data[start:end] for start, end in pairwise(ends)]


def read(body: FetchedBody, *parts: bytes) -> bytes:
    for part in parts:
        must_stop = not body.receive(part)
        assert must_stop == (bool(body.pending) or body.is_full)
        while body.pending:
            body.decode_slice()
    return body.content()


def reason(body: FetchedBody, *parts: bytes) -> str:
    with pytest.raises(FetchFailed) as failed:
        read(body, *parts)
    return failed.value.reason


@given(st.lists(st.binary(max_size=500), min_size=1, max_size=4), st.lists(st.integers(0, 5000), max_size=6))
def test_gzip_in_any_parts(members: list[bytes], places: list[int]) -> None:
    """Gzip of one or more members is decompressed however it is split into parts."""
    body = body_of()
    assert read(body, *split(b"".join(map(gzip.compress, members)), places)) == b"".join(members)


@given(st.lists(st.integers(0, 5000), max_size=6))
def test_gzip_of_several_slices(places: list[int]) -> None:
    """A small part that becomes large is decompressed slice by slice."""
    wanted = bytes(3 * SLICE_BYTES + 17) + b"end"
    assert read(body_of(len(wanted)), *split(gzip.compress(wanted), places)) == wanted


@given(st.binary(max_size=2000), st.lists(st.integers(0, 5000), max_size=6), st.integers(0, 600))
def test_any_bytes_as_gzip(data: bytes, places: list[int], bytes_max: int) -> None:
    """Whatever comes as gzip ends with FetchFailed or with no more bytes than allowed."""
    body = body_of(bytes_max)
    with contextlib.suppress(FetchFailed):
        assert len(read(body, *split(data, places))) <= bytes_max


@pytest.mark.parametrize("coding", [b"", b"identity", b" Identity "])
def test_a_plain_body(coding: bytes) -> None:
    """A body without an encoding comes as it is, and may have exactly as many bytes as allowed."""
    body = body_of(4, coding)
    assert body.receive(b"ab")
    assert body.receive(b"cd")
    assert body.content() == b"abcd"
    assert reason(body, b"e") == "too_large"


@pytest.mark.parametrize("coding", [b"br", b"deflate", b"zstd", b"compress", b"gzip, gzip", b"br, gzip", b"nonsense"])
def test_an_encoding_that_was_not_asked_for(coding: bytes) -> None:
    """Brotli, deflate, zstd and nested encodings are refused, so that their bombs are never opened."""
    with pytest.raises(FetchFailed) as failed:
        body_of(coding=coding)
    assert failed.value.reason == "encoding"


def test_a_gzip_bomb() -> None:
    """A gzip bomb is refused when its bound is reached, and takes little more memory than that."""
    bomb = gzip.compress(bytes(64 * MIB))
    body = body_of(MIB)
    tracemalloc.start()
    assert reason(body, bomb) == "too_large"
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 4 * MIB


def test_a_bomb_of_many_members() -> None:
    """A body of thousands of tiny gzip members is refused, because each takes time to begin."""
    assert reason(body_of(), gzip.compress(b"") * (MEMBERS_MAX + 1)) == "broken"


def test_gzip_that_never_gives_a_byte() -> None:
    """Compressed bytes count too: endless empty blocks are refused."""
    endless = zlib.compressobj(wbits=31)
    head = endless.compress(b"a") + endless.flush(zlib.Z_SYNC_FLUSH)
    assert reason(body_of(1000), head, *[b"\x00\x00\x00\xff\xff"] * 1000) == "too_large"


NOT_GZIP = {
    "text": b"<html>",
    "nothing": b"",
    "two bytes": b"\x1f\x8b",
    "cut": gzip.compress(b"page")[:-1],
    "deflate": zlib.compress(b"page"),
}


@pytest.mark.parametrize("case", NOT_GZIP)
def test_gzip_that_is_none_or_is_cut(case: str) -> None:
    """A body that says gzip and is not, or breaks off, is broken."""
    assert reason(body_of(), NOT_GZIP[case]) == "broken"


def test_bytes_after_gzip() -> None:
    """Bytes after the last member of gzip are ignored."""
    body = body_of()
    body.receive(gzip.compress(b"page") + b"\0\0junk")
    body.receive(b"more junk")
    assert body.content() == b"page"


@pytest.mark.parametrize("coding", [b"", b"gzip"])
def test_a_body_that_is_cut(coding: bytes) -> None:
    """Where a body may be cut, its reader stops at the bound."""
    body = body_of(10, coding, truncates=True)
    sent = b"0123456789abcdef"
    assert not body.receive(gzip.compress(sent) if coding else sent)
    assert body.content() == sent[:10]


def test_all_bodies_together_are_bounded() -> None:
    """Bodies that arrive at the same time share a bound, and give back their part at their end."""
    held = ByteBudget(10)
    first, second = (FetchedBody(BodyLimit(100), b"", held) for _ in range(2))
    first.receive(b"01234567")
    assert reason(second, b"0123") == "busy"
    first.close()
    second.receive(b"0123456789")
    assert second.content() == b"0123456789"
