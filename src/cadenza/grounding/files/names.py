"""The names of files that strangers send."""

NAME_CHARS_MAX = 120
SUFFIX_CHARS_MAX = 16


def clean_name(name: str) -> str:
    """The last part of a path, without control characters, and not too long. Its suffix is kept."""
    base = "".join(filter(str.isprintable, name)).replace("\\", "/").rpartition("/")[2].strip()
    if len(base) > NAME_CHARS_MAX:
        stem, dot, suffix = base.rpartition(".")
        suffix = f"{dot}{suffix}" if stem and len(suffix) < SUFFIX_CHARS_MAX else ""
        base = base[: NAME_CHARS_MAX - len(suffix)] + suffix
    return base or "file"
