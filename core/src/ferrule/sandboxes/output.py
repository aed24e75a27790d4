"""Output of unknown size in memory of known size: the head and the tail are kept, the middle is counted."""

from __future__ import annotations


class BoundedOutput:
    """Keeps the first and the last half of *limit* bytes of what it is fed; memory stays below twice the limit."""

    def __init__(self, limit: int) -> None:
        self.limit = max(0, limit)
        self.total = 0
        self._head_limit = (self.limit + 1) // 2
        self._tail_limit = self.limit - self._head_limit
        self._head = bytearray()
        self._tail = bytearray()

    def feed(self, data: bytes) -> None:
        self.total += len(data)
        room = self._head_limit - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if not data or not self._tail_limit:
            return
        self._tail += data[-self._tail_limit :]
        if len(self._tail) > 2 * self._tail_limit:
            del self._tail[: -self._tail_limit]

    @property
    def dropped(self) -> int:
        """Bytes that were fed and are kept nowhere."""
        return self.total - len(self._head) - min(len(self._tail), self._tail_limit)

    def text(self) -> str:
        """What is kept, as UTF-8 (other bytes become U+FFFD), with a line in the middle that says how much was dropped."""
        tail = self._tail[-self._tail_limit :] if self._tail_limit else bytearray()
        if not self.dropped:
            return (self._head + tail).decode("utf-8", "replace")
        first, last = _whole_end(bytes(self._head)), _whole_start(bytes(tail))
        note = f"\n[... {self.total - len(first) - len(last)} bytes dropped ...]\n"
        return first.decode("utf-8", "replace") + note + last.decode("utf-8", "replace")


def _whole_end(data: bytes) -> bytes:
    """*data* without a character that was cut at its end."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 == 0x80:
            continue
        length = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
        return data[:-back] if length > back else data
    return data


def _whole_start(data: bytes) -> bytes:
    """*data* without the rest of a character that was cut at its start."""
    for i in range(min(3, len(data))):
        if data[i] & 0xC0 != 0x80:
            return data[i:]
    return data[3:] if len(data) > 3 and data[3] & 0xC0 != 0x80 else data
