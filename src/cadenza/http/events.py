"""Server-sent events, sans I/O: bytes -> the data of each event, and data -> bytes.

Reading takes whatever the standard allows (LF, CR and CRLF, comments, several data lines, any split of the bytes);
writing is one `data:` line per event and nothing else, since clients choke on the rest.
"""

DONE = b"data: [DONE]\n\n"
PING = b": ping\n\n"
EVENT_BYTES_MAX = 8 * 1024 * 1024


class EventTooLarge(ValueError):
    """An event grew past EVENT_BYTES_MAX without ending."""


def write_event(data: bytes) -> bytes:
    """`data` is one line: JSON as msgspec writes it never holds a raw line end."""
    return b"data: " + data + b"\n\n"


class EventReader:
    """Feed it bytes as they come; it hands out the data of each event that has become whole."""

    def __init__(self) -> None:
        self._unended: list[bytes] = []  # parts of the line that has not ended yet
        self._data: list[bytes] = []  # data lines of the event that has not ended yet
        self._kept_bytes = 0  # of both
        self._after_cr = False
        self._at_start = True

    @property
    def is_between(self) -> bool:
        """Nothing is kept that would change what the next bytes mean."""
        return not (self._unended or self._data or self._after_cr or self._at_start)

    def feed(self, read: bytes) -> list[bytes]:
        if self._after_cr and read:
            read = read.removeprefix(b"\n")
            self._after_cr = False
        if b"\r" in read:
            self._after_cr = read.endswith(b"\r")
            read = read.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if b"\n" not in read:
            self._keep(read)
            return []
        *lines, rest = b"".join((*self._unended, read)).split(b"\n")
        self._kept_bytes -= sum(map(len, self._unended))
        self._unended.clear()
        events = [event for line in lines if (event := self._take(line))]
        self._keep(rest)
        return events

    def end(self) -> list[bytes]:
        """The event that the last bytes left without its blank line, if there is one."""
        return self.feed(b"\n\n") if self._unended or self._data else []

    def _keep(self, part: bytes) -> None:
        if part:
            self._unended.append(part)
            self._kept_bytes += len(part)
        if self._kept_bytes > EVENT_BYTES_MAX:
            raise EventTooLarge

    def _take(self, line: bytes) -> bytes | None:
        if self._at_start:
            line = line.removeprefix(b"\xef\xbb\xbf")
            self._at_start = False
        if not line:
            event = b"\n".join(self._data)
            self._data.clear()
            self._kept_bytes = 0
            return event
        name, _, value = line.partition(b":")
        if name == b"data":
            self._data.append(value.removeprefix(b" "))
            self._kept_bytes += len(line) + 1
        return None
