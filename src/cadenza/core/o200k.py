"""The tokenizer o200k, offline: tiktoken's core, with a vocabulary that is in this package.

`o200k.bin` is the vocabulary that OpenAI published with tiktoken (MIT licence, Copyright (c) 2022 OpenAI, Shantanu
Jain: `o200k.LICENSE.txt`), packed. A token is one byte or two earlier tokens, so the file has, compressed with zlib:
the 256 bytes in the order of their tokens; of all other tokens the number of the first part, as one column of the
numbers' lowest bytes, one of the middle and one of the highest; and likewise that of the second part. A test makes the
published file of it again.
"""

import zlib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tiktoken._tiktoken import CoreBPE

FILE = Path(__file__).with_name("o200k.bin")
BYTES = 256
COLUMNS = 6
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
SUFFIX = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
PATTERN = "|".join(
    [
        rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{SUFFIX}",
        rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{SUFFIX}",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)  # no token spans two matches


@cache
def read_core() -> "tuple[type[CoreBPE], bytes]":
    """All of a load that needs files: a process reads it before it enters a sandbox."""
    from tiktoken._tiktoken import CoreBPE  # noqa: PLC0415 20 ms that many processes never need

    return CoreBPE, FILE.read_bytes()


def unpack(packed: bytes) -> list[bytes]:
    """The tokens, in the order of their numbers."""
    data = zlib.decompress(packed)
    tokens = [data[number : number + 1] for number in range(BYTES)]
    count = (len(data) - BYTES) // COLUMNS
    columns = (data[BYTES + count * column : BYTES + count * (column + 1)] for column in range(COLUMNS))
    for low, middle, high, low_2, middle_2, high_2 in zip(*columns, strict=True):
        tokens.append(tokens[low | middle << 8 | high << 16] + tokens[low_2 | middle_2 << 8 | high_2 << 16])
    return tokens


@cache
def load() -> "CoreBPE":
    """Takes 250 ms and 49 MB, once for the process. For half of the time it holds the interpreter's lock."""
    core, packed = read_core()
    return core({token: number for number, token in enumerate(unpack(packed))}, {}, PATTERN)
