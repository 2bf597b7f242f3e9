"""Frames: whatever is packed comes out again, in whatever pieces it arrives; what is no frame is refused."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.node.wire import MAX_FRAME, FrameReader, WireError, pack_message, pack_output

#: also lone surrogates, as in argv that is no UTF-8
_TEXT = st.text(st.characters(codec=None), max_size=20)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | _TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_TEXT, inner, max_size=4),
    max_leaves=10,
)
_MESSAGES = st.dictionaries(_TEXT, _JSON, max_size=5)
_OUTPUTS = st.tuples(st.integers(0, 2**32 - 1), st.binary(max_size=300))
_FRAMES = st.lists(_MESSAGES | _OUTPUTS, max_size=8)


def pack(frame: Any) -> bytes:
    return pack_output(*frame) if isinstance(frame, tuple) else pack_message(frame)


@given(_FRAMES, st.data())
def test_frames_survive_any_cutting_of_the_stream(frames: list[Any], data: st.DataObject) -> None:
    stream = b"".join(map(pack, frames))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    reader = FrameReader()
    read = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        read += reader.feed(stream[start:end])
    assert read == frames


@given(_MESSAGES)
def test_a_frame_that_is_cut_short_is_awaited(message: dict[str, Any]) -> None:
    packed = pack(message)
    reader = FrameReader()
    assert reader.feed(packed[:-1]) == []
    assert reader.feed(packed[-1:]) == [message]


@given(st.binary(min_size=1, max_size=200))
def test_no_noise_gets_through_as_anything_else_than_a_wire_error(noise: bytes) -> None:
    try:
        frames = FrameReader().feed(noise)
    except WireError:
        return
    assert all(isinstance(frame, (dict, tuple)) for frame in frames)


@pytest.mark.parametrize(
    ("stream", "why"),
    [
        (b"Welcome to node01\r\n", "not a frame: b'Welcome to node01"),
        (struct.pack(">Ic", MAX_FRAME + 1, b"J"), "not a frame"),
        (struct.pack(">Ic", 2, b"X") + b"{}", "not a frame"),
        (struct.pack(">Ic", 3, b"J") + b"{x}", "not a JSON object: b'{x}'"),
        (struct.pack(">Ic", 2, b"J") + b"[]", r"not a JSON object: b'\[\]'"),
        (struct.pack(">Ic", 2, b"J") + b"\xff\xfe", "not a JSON object"),
        (struct.pack(">Ic", 3, b"O") + b"abc", "output of no rank: b'abc'"),
    ],
)
def test_what_is_no_frame_is_refused_with_its_text(stream: bytes, why: str) -> None:
    with pytest.raises(WireError, match=why):
        FrameReader().feed(stream)


def test_a_large_frame_in_small_pieces_takes_no_square_time() -> None:
    packed = pack_output(1, b"x" * (8 << 20))
    reader = FrameReader()
    frames = []
    for at in range(0, len(packed), 16384):
        frames += reader.feed(packed[at : at + 16384])
    assert frames == [(1, b"x" * (8 << 20))]
