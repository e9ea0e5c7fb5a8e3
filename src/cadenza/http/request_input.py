"""The bytes of a connection that have arrived and are not parsed yet. They are cut where a request may end."""

BLANK_LINE = b"\r\n\r\n"
LINE_ENDS = b"\r\n"
PIECE_BYTES_MAX = 8192  # bounds how often httptools calls back for one piece
COPY_BYTES_MAX = 4096  # copying fewer bytes costs less than a view of them


class RequestInput:
    """A queue of bytes. What is taken from it never reaches beyond the end of a head or of a body."""

    __slots__ = ("_at", "_data", "_end")

    def __init__(self) -> None:
        self._data = b""
        self._at = 0  # before it everything was taken
        self._end = b""  # the last bytes that were taken, where a blank line may have begun in them

    def __len__(self) -> int:
        return len(self._data) - self._at

    def add(self, data: bytes) -> None:
        self._data = data if self._at == len(self._data) else self._data[self._at :] + data
        self._at = 0

    def take_whole_head(self) -> bytes:
        """The head at the front, if all of it has arrived and it is small; else nothing. This is the usual case."""
        data, begin = self._data, self._at
        found = data.find(BLANK_LINE, begin, begin + PIECE_BYTES_MAX)
        if found <= begin or data[begin] in LINE_ENDS:
            return b""
        self._at = end = found + len(BLANK_LINE)
        return data[begin:end] if begin or end < len(data) else data

    def skip_line_ends(self) -> int:
        """Drop the line ends at the front; how many bytes they were."""
        begin, data = self._at, self._data
        while self._at < len(data) and data[self._at] in LINE_ENDS:
            self._at += 1
        return self._at - begin

    def take(self, size_bytes: int) -> bytes | memoryview:
        """At most so many bytes."""
        data, begin = self._data, self._at
        end = self._at = min(begin + size_bytes, len(data))
        if end - begin == len(data):
            return data
        return data[begin:end] if end - begin <= COPY_BYTES_MAX else memoryview(data)[begin:end]

    def take_to_blank_line(self) -> bytes:
        """The next piece, which ends at the first blank line if there is one in it."""
        data, begin = self._data, self._at
        end = self._end_of_split_blank_line() if self._end else 0
        if not end:
            end = min(begin + PIECE_BYTES_MAX, len(data))
            found = data.find(BLANK_LINE, begin, end)
            if found >= 0:
                end = found + len(BLANK_LINE)
        taken = data if end - begin == len(data) else data[begin:end]
        self._at = end
        self._end = b"" if taken.endswith(BLANK_LINE) else (self._end + taken)[-3:]
        return taken

    def forget_blank_line(self) -> None:
        """What was taken so far is complete: no blank line begins in it."""
        self._end = b""

    def _end_of_split_blank_line(self) -> int:
        """Where a blank line ends that began in what was taken before; 0 if there is none."""
        found = (self._end + self._data[self._at : self._at + 3]).find(BLANK_LINE)
        return self._at + found + len(BLANK_LINE) - len(self._end) if found >= 0 else 0
