"""The frames that head and agent exchange over one byte stream in each direction. Runs on both ends.

A frame is ``length (4 bytes, big endian) kind (1 byte) payload``; ``length`` counts the payload. Kinds: ``J`` a JSON
object, ``O`` output of a rank: rank (4 bytes) and its raw bytes, ``D`` a piece of a file on its way to or from a node.
The bootstrap's one line comes before the first frame, so whatever a login shell prints has been passed over by then.
"""

from __future__ import annotations

import struct

from . import plain_json

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing is not loaded on nodes, see ``agent``
    from typing import Any, Callable, Dict, List, Tuple, Union

    #: what ``FrameReader.feed`` yields: a JSON object, (rank, bytes) for output, or bytes of a file
    Frame = Union[Dict[str, Any], Tuple[int, bytes], bytes]

JSON_KIND = b"J"
OUTPUT_KIND = b"O"
DATA_KIND = b"D"
MAX_FRAME = 64 * 1024 * 1024

#: bytes of a file in one frame, and how many may be under way before the receiver has said that they are written
PIECE_BYTES = 256 * 1024
WINDOW_BYTES = 8 * 1024 * 1024

_HEAD = struct.Struct(">Ic")
_RANK = struct.Struct(">I")


class WireError(Exception):
    """The stream does not hold frames: another program writes into it."""


def pack_message(message: dict[str, Any]) -> bytes:
    """One JSON object as a frame. Lone surrogates, as in odd argv, survive."""
    payload = plain_json.dumps(message).encode("ascii")
    return _HEAD.pack(len(payload), JSON_KIND) + payload


def pack_output(rank: int, data: bytes) -> bytes:
    """Raw output bytes of a rank as a frame."""
    return _HEAD.pack(len(data) + _RANK.size, OUTPUT_KIND) + _RANK.pack(rank) + data


def pack_data(data: bytes) -> bytes:
    """A piece of a file as a frame."""
    return _HEAD.pack(len(data), DATA_KIND) + data


class FrameReader:
    """Cuts a byte stream into frames, whatever the pieces it arrives in."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> List[Frame]:
        """Add bytes and return the whole frames they complete.

        Raises:
            WireError: the length or kind of a frame cannot be right.
        """
        self._buffer += data
        frames: List[Frame] = []
        while len(self._buffer) >= _HEAD.size:
            length, kind = _HEAD.unpack_from(self._buffer)
            if length > MAX_FRAME or kind not in _READERS:
                raise WireError("not a frame: %r" % bytes(self._buffer[:60]))
            end = _HEAD.size + length
            if len(self._buffer) < end:
                break
            payload = bytes(self._buffer[_HEAD.size : end])
            del self._buffer[:end]
            frames.append(_READERS[kind](payload))
        return frames


def _read_json(payload: bytes) -> Dict[str, Any]:
    try:
        message = plain_json.loads(payload.decode("ascii"))
    except ValueError:
        message = None
    if not isinstance(message, dict):
        raise WireError("not a JSON object: %r" % payload[:60])
    return message


def _read_output(payload: bytes) -> Tuple[int, bytes]:
    if len(payload) < _RANK.size:
        raise WireError("output of no rank: %r" % payload)
    return _RANK.unpack_from(payload)[0], payload[_RANK.size :]


_READERS: Dict[bytes, Callable[[bytes], Frame]] = {
    JSON_KIND: _read_json, OUTPUT_KIND: _read_output, DATA_KIND: lambda payload: payload,
}  # fmt: skip
