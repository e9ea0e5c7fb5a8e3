"""Images: credit is held for the most that a provider counts for their pixels, or for an image of any size."""

import base64
import json
import math
import struct
from collections.abc import Callable
from fractions import Fraction
from random import Random
from typing import Any

import pytest

from cadenza.core.chat import Media
from cadenza.core.image_tokens import (
    BASE_TOKENS,
    IMAGE_TOKENS_MAX,
    PATCHES_MAX,
    SEGMENTS_MAX,
    TILE_TOKENS,
    pixels_of,
)
from cadenza.gateway.validate import parse_chat

EXIF = b"\xff\xe1" + struct.pack(">H", 2_002) + b"\xff\xc0\0\x11\x08\0\x01\0\x01" + bytes(1_991)


def png(width: int, height: int) -> bytes:
    return b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + struct.pack(">II", width, height) + bytes(100)


def jpeg(width: int, height: int, before: bytes = b"") -> bytes:
    return b"\xff\xd8" + before + b"\xff\xc0\0\x11\x08" + struct.pack(">HH", height, width) + bytes(100)


def url_of(data: bytes, media_type: str = "image/png") -> str:
    return f"data:{media_type};base64,{base64.b64encode(data).decode()}"


def media_of(image: Any) -> Media:
    part = {"type": "image_url", "image_url": image}
    return parse_chat(json.dumps({"messages": [{"role": "user", "content": [part]}]}).encode()).media


@pytest.mark.parametrize(("segments", "is_found"), [(SEGMENTS_MAX - 1, True), (SEGMENTS_MAX, False)])
def test_few_segments_of_a_jpeg_are_walked(segments: int, *, is_found: bool) -> None:
    """The size counts if it is in one of the first 64 segments; else it may be an image of any size."""
    media = media_of({"url": url_of(jpeg(512, 512, b"\xff\xe0\0\2" * segments), "image/jpeg")})
    assert (media.tokens_held == BASE_TOKENS + TILE_TOKENS) is is_found


@pytest.mark.parametrize(
    ("width", "height", "tiles"),
    [
        (1, 1, 1),
        (512, 512, 1),
        (513, 512, 2),
        (1024, 1024, 4),
        (4096, 8192, 6),
        (2048, 768, 8),
        (2506, 1252, 8),
        (60_000, 20_000, 8),
    ],
)
def test_an_image_costs_its_tiles(width: int, height: int, tiles: int) -> None:
    """After it was reduced, each tile of 512 pixels counts; the bytes of the image count for nothing."""
    for data in (png(width, height), jpeg(width, height), jpeg(width, height, EXIF)):
        if data.startswith(b"\xff\xd8") and width > 65_535:
            continue
        url = url_of(data)
        media = media_of({"url": url})
        assert media.tokens_held == media.tokens_max == BASE_TOKENS + tiles * TILE_TOKENS
        assert media.size_bytes == len(url) + 2


@pytest.mark.slow(reason="tries all sizes of an image")
@pytest.mark.parametrize("round_side", [Fraction, math.floor, math.ceil, round])
def test_no_rounding_of_a_provider_makes_more_tiles(round_side: Callable[[Fraction], Fraction | int]) -> None:
    """Whether it keeps fractions of a pixel after the first reduction, or rounds them in any way."""
    random = Random(7)
    for _ in range(3_000):
        width, height = random.randint(1, 9_000), random.randint(1, 9_000)
        sides = [Fraction(width), Fraction(height)]
        for limit, side in ((2_048, max), (768, min)):
            scale = min(Fraction(1), limit / side(sides))
            sides = [max(Fraction(1), Fraction(round_side(one * scale))) for one in sides]
        tiles = min(8, math.prod(math.ceil(one / 512) for one in sides))
        held = media_of({"url": url_of(png(width, height))}).tokens_held
        assert held >= BASE_TOKENS + tiles * TILE_TOKENS, (width, height)


def test_low_detail_has_no_tiles() -> None:
    """A model that knows no detail counts patches all the same."""
    assert media_of({"url": url_of(png(64, 64)), "detail": "low"}).tokens_held == BASE_TOKENS
    assert media_of({"detail": "low", "url": url_of(png(1024, 1024))}).tokens_held == 74 * 74
    assert media_of({"url": "https://example.org/a.png", "detail": "low"}).tokens_held == PATCHES_MAX
    for detail in ("high", "auto"):
        assert media_of({"url": url_of(png(64, 64)), "detail": detail}).tokens_held == BASE_TOKENS + TILE_TOKENS


@pytest.mark.parametrize(
    "image",
    [
        {"url": "https://example.org/a.png"},
        {"url": url_of(png(64, 64)), "vendor": 1},
        {"url": url_of(b"GIF89a" + bytes(100), "image/gif")},
        {"url": url_of(jpeg(64, 64)[:8])},
        {"url": url_of(png(0, 64))},
        url_of(png(64, 64)),
    ],
    ids=["elsewhere", "another field", "another kind", "cut off", "no pixels", "no object"],
)
def test_an_image_of_unknown_size_costs_the_most(image: Any) -> None:
    """It may be as large as any."""
    assert media_of(image).tokens_held == IMAGE_TOKENS_MAX


def test_a_detail_that_is_there_twice_is_not_low() -> None:
    """An upstream may read the other one."""
    url, body = json.dumps(url_of(png(1024, 1024))), '{"messages":[{"role":"user","content":[%s]}]}'
    for image in (f'"detail":"low","url":{url},"detail":"high"', f'"url":{url},"d\\u0065tail":"high","detail":"low"'):
        part = f'{{"type":"image_url","image_url":{{{image}}}}}'
        assert parse_chat((body % part).encode()).media.tokens_held >= BASE_TOKENS + 4 * TILE_TOKENS


@pytest.mark.parametrize(
    "data", [b"", b"\xff\xd8\xff", png(1, 1)[:20], b"\xff\xd8\xff\xe0\0\0", b"\xff\xd8\xff\xda\0\x04"]
)
def test_half_an_image_has_no_size(data: bytes) -> None:
    """What cannot be read is not guessed."""
    assert pixels_of(data) is None
