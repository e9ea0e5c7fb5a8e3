"""How many tokens a model may count for an image: by its pixels, which are given at the beginning of its data.

OpenAI's small models count most: 2,833 tokens, and at high detail 5,667 more for each tile of 512 pixels, after the
image was reduced to 2,048 by 768. Models that count patches take no notice of the detail: up to 16,384 tokens. Others
count less: Gemini 258 a tile, Anthropic up to 4,784.
"""

import struct
from collections.abc import Iterator
from itertools import islice

from cadenza.core.files import FileType, file_type

BASE_TOKENS, TILE_TOKENS, TILE_PIXELS = 2_833, 5_667, 512
LONG_PIXELS, SHORT_PIXELS, TILES_MAX = 2_048, 768, 8
PATCH_PIXELS, PATCHES_MAX = 14, 16_384
IMAGE_TOKENS = 1_024  # of a usual image
IMAGE_TOKENS_MAX = BASE_TOKENS + TILES_MAX * TILE_TOKENS
HEAD_BYTES = 256 * 1024  # the size of a JPEG comes after its profiles and its preview
SEGMENTS_MAX = 64  # of a JPEG, before its size: cameras write ten, programs thirty

START_OF_FRAME = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
Pixels = tuple[int, int]


def most_image_tokens(head: bytes, *, is_low: bool) -> int:
    """The most for an image that begins with these bytes; if its size is not known, for an image of any size.

    At low detail there are no tiles.
    """
    pixels = pixels_of(head)
    patches, tiles = PATCHES_MAX, TILES_MAX
    if pixels:
        width, height = pixels
        patches = min(PATCHES_MAX, -(-width // PATCH_PIXELS) * -(-height // PATCH_PIXELS))
        tiles = _tiles(pixels)
    if is_low:
        return max(BASE_TOKENS, patches)
    return max(BASE_TOKENS + tiles * TILE_TOKENS, patches)


def pixels_of(head: bytes) -> Pixels | None:
    """Width and height of a PNG or a JPEG; None if they cannot be found."""
    type_ = file_type(head)
    if type_ is FileType.PNG and head[12:16] == b"IHDR" and len(head) >= 24:
        width, height = struct.unpack(">II", head[16:24])
        return _sane(width, height)
    if type_ is FileType.JPEG:
        for marker, segment in islice(_segments(head), SEGMENTS_MAX):
            if marker in START_OF_FRAME and len(segment) >= 5:
                height, width = struct.unpack(">HH", segment[1:5])
                return _sane(width, height)
    return None


def _segments(jpeg: bytes) -> Iterator[tuple[int, bytes]]:
    place = 2
    while place + 4 <= len(jpeg) and jpeg[place] == 0xFF:
        marker, size = jpeg[place + 1], int.from_bytes(jpeg[place + 2 : place + 4], "big")
        if marker in (0xFF, 0xDA) or size < 2:  # a fill byte, the image data, or no segment at all
            return
        yield marker, jpeg[place + 4 : place + 2 + size]
        place += 2 + size


def _sane(width: int, height: int) -> Pixels | None:
    return (width, height) if width and height else None


def _tiles(pixels: Pixels) -> int:
    """The number of tiles after the image is reduced, however a provider rounds. Smaller images are not enlarged."""
    short, long = sorted(pixels)
    short_min = short  # rounded down: the shorter this side, the longer the other one after the second step
    if long > LONG_PIXELS:
        short_min, short, long = short * LONG_PIXELS // long, -(-short * LONG_PIXELS // long), LONG_PIXELS
    if short > SHORT_PIXELS:
        short, long = SHORT_PIXELS, min(long, -(-long * SHORT_PIXELS // max(short_min, SHORT_PIXELS)))
    return min(TILES_MAX, -(-short // TILE_PIXELS) * -(-long // TILE_PIXELS))
