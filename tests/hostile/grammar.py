"""Inputs of any size: a sample in which pieces are repeated. What was dear is changed a little, and tried again."""

import ast
import base64
import json
import random
import re
import zlib
from collections.abc import Iterator
from typing import NamedTuple

NUMBER, BEFORE = b"{i}", b"{i-1}"  # in a piece: the number of its repetition, and of the one before
SPLIT = b"{|}"  # in a piece: its first part is repeated before its second part: ((( )))
SHARES = (1.0, 0.5, 0.25, 0.1, 0.03, 0.01)  # of the size, which a repeated piece takes
CUT = 0.1  # of the inputs in JSON
REPEATED_MAX = 500  # of a part of a piece
PLACES_MAX = 3
PIECE_BYTES_MAX = 4096
JSON_ITEMS = (b"0,", b"{},", b"[],", b'"",', b'"a{i}",', b"[{|}]{|},", b'{"a":[{|}]}{|},', b"null,")
JSON_FIELDS = (b'"k{i}":0,', b'"k":0,', b'"k{i}":{},', b'"k":[{|}]{|},')
JSON_TEXT = (
    b"a",
    b" ",
    b"\\n",
    b'\\"',
    b"\\\\",
    b"\\u0041",
    b"\\ud83d\\ude00",
    b"\xc3\xa9",
    b",",
    b"a{i} ",
    b"`",
    b"[1] ",
)


class Growth(NamedTuple):
    """A piece that is repeated at a place of the sample, until it takes this share of the size."""

    place: int
    piece: bytes
    share: float


class Recipe(NamedTuple):
    """An input at any size."""

    sample: bytes
    growths: tuple[Growth, ...] = ()

    def at(self, size_bytes: int) -> bytes:
        made, end, left_bytes = list[bytes](), 0, max(0, size_bytes - len(self.sample))
        shares = max(1.0, sum(growth.share for growth in self.growths))
        for place, piece, share in sorted(self.growths):
            made += [self.sample[end:place], _repeat(piece, int(share / shares * left_bytes))]
            end = max(end, place)
        return b"".join([*made, self.sample[end:]]).replace(NUMBER, b"x")

    def pack(self) -> str:
        """One word, to replay it by."""
        plain = (self.sample, [tuple(growth) for growth in self.growths])
        return base64.urlsafe_b64encode(zlib.compress(repr(plain).encode())).decode()

    @classmethod
    def unpack(cls, packed: str) -> "Recipe":
        sample, growths = ast.literal_eval(zlib.decompress(base64.urlsafe_b64decode(packed)).decode())
        return cls(sample, tuple(Growth(*growth) for growth in growths))


def _repeat(piece: bytes, size_bytes: int) -> bytes:
    count = size_bytes // len(piece)
    first, *others = piece.split(SPLIT)
    if not others and NUMBER in piece:
        return b"".join([piece.replace(NUMBER, b"%d" % at).replace(BEFORE, b"%d" % (at - 1)) for at in range(count)])
    return first * count + b"".join(part * (count if number == 0 else 1) for number, part in enumerate(others))


class Grammar(NamedTuple):
    """Samples, and what is repeated in them, at any place. In JSON, also what fits its lists, objects and texts."""

    samples: tuple[bytes, ...]
    pieces: tuple[bytes, ...] = ()
    is_json: bool = False
    fields: tuple[bytes, ...] = ()  # of JSON: what its objects may have

    def begin(self, chance: random.Random) -> Recipe:
        sample = chance.choice(self.samples)
        made = Recipe(sample, tuple(self._growth(chance, sample) for _ in range(chance.randint(1, PLACES_MAX))))
        return _cut(made) if self.is_json and chance.random() < CUT else made

    def change(self, chance: random.Random, recipe: Recipe) -> Recipe:
        sample, growths = recipe.sample, list(recipe.growths)
        at = chance.randrange(len(growths))
        place, piece, share = growths[at]
        match chance.randrange(6):
            case 0:
                growths[at] = self._growth(chance, sample)
            case 1 if len(growths) < PLACES_MAX:
                growths.append(self._growth(chance, sample))
            case 2 if len(growths) > 1:
                del growths[at]
            case 3:
                growths[at] = Growth(place, _swell(chance, piece), share)
            case 4 if not self.is_json:
                cut = chance.randrange(len(sample) + 1)
                sample = sample[:cut] + sample[cut + chance.randint(1, 20) :]
            case 4:
                return _cut(recipe)
            case _:
                growths[at] = Growth(place, piece, chance.choice(SHARES))
        return Recipe(sample, tuple(growths))

    def _growth(self, chance: random.Random, sample: bytes) -> Growth:
        places = list(self._places(sample))
        place, pieces = chance.choice(places)
        piece = chance.choice(pieces)
        if not self.is_json:
            piece = b"".join([piece, *chance.choices(pieces, k=chance.choice((0, 0, 1, 2)))])
        if chance.random() < 0.2:
            piece = _swell(chance, piece)
        return Growth(place, piece, chance.choice(SHARES))

    def _places(self, sample: bytes) -> Iterator[tuple[int, tuple[bytes, ...]]]:
        """Where something may be repeated, and what. Places in a text come first and last, and between its tokens."""
        if self.is_json:
            whole = next(one for one in self.samples if one.startswith(sample))
            places = _json_places(whole.decode("latin-1"), self.pieces, self.fields)
            yield from ((place, pieces) for place, pieces in places if place <= len(sample))
            return
        own = tuple(token[0] for token in re.finditer(rb"[^\n<>]*[\n<>]?", sample) if token[0])
        for found in re.finditer(rb"\b|\Z|\n|[<>{}\[\]()\"]", sample):
            yield found.start(), self.pieces * 3 + own


def _json_places(
    sample: str, texts: tuple[bytes, ...], fields: tuple[bytes, ...]
) -> Iterator[tuple[int, tuple[bytes, ...]]]:
    decoder = json.JSONDecoder()
    for found in re.finditer(r'"(?:[^"\\]|\\.)*"|[\[{]', sample):
        if found[0] == "[":
            items, end = list[bytes](), found.end()
            while sample[end] != "]" and len(items) < PLACES_MAX:
                start, end = end, decoder.raw_decode(sample, end)[1]
                items.append(sample[start:end].encode("latin-1") + b",")
                end += sample[end] == ","
            runs = [
                b"".join(items[start:end]) for start in range(len(items)) for end in range(start + 1, len(items) + 1)
            ]
            yield found.end(), (*runs, *runs, *JSON_ITEMS)
        elif found[0] == "{":
            yield found.end(), (*JSON_FIELDS, *fields)
        elif sample[found.end() : found.end() + 1] != ":":
            yield found.end() - 1, (*JSON_TEXT, *texts)


def _cut(recipe: Recipe) -> Recipe:
    """Its last text, list or object does not end."""
    return Recipe(recipe.sample[: max(growth.place for growth in recipe.growths)], recipe.growths)


def _swell(chance: random.Random, piece: bytes) -> bytes:
    """The piece with one of its own parts many times."""
    start = chance.randrange(len(piece))
    part = piece[start : start + chance.choice((1, 1, 2, 5))]
    swollen = piece[:start] + part * chance.randint(2, REPEATED_MAX) + piece[start:]
    return swollen if len(swollen) <= PIECE_BYTES_MAX else piece
