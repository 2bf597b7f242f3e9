"""Lines of a node's relay, and how the head joins them again."""

import random

import pytest

from launcher.node import relay
from launcher.remote import srun


def carried(pieces):
    """What a stream of the head says after a node's pieces."""
    stream = srun.SrunStream(None, 3, "node004")
    sequence = 0
    for piece in pieces:
        for line in relay.cut_lines(3, sequence, piece):
            assert len(line) <= 1000
            assert line.endswith(b"\n")
            node, number, state, coded = line[:-1].split(b" ")
            assert int(node) == 3
            stream.take(int(number), state, coded)
            sequence += 1
    return stream


def read_all(stream):
    said = []
    while piece := stream.read(0.1):
        said.append(piece)
    return said


@pytest.mark.parametrize("size", [1, 2, 725, 726, 727, 1452, 65536])
def test_pieces_are_cut_into_lines_of_at_most_1000_bytes_and_joined_again(size):
    pieces = [random.Random(size + number).randbytes(size) for number in range(3)]
    assert read_all(carried([*pieces, b""])) == pieces


def test_head_and_relay_agree_on_the_format():
    for name in ("ALL", "NAMES", "DATA", "CODE", "CLOSE"):
        assert getattr(relay, name) == getattr(srun, name)
    assert relay.HEAD.format == srun.PACKET.format
    assert relay.name_step(2, {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "1"}).split()[2] == srun.STEP


def test_a_line_that_is_missing_or_cut_ends_the_stream():
    stream = carried([b"a"])
    stream.take(2, b"1", b"YQ==")
    assert stream.read(0.1) == b"a"
    with pytest.raises(OSError, match="srun lost a line: 1 was to come, not 2"):
        stream.read(0.1)
    stream = carried([])
    stream.take(0, b"1", b"YQ")
    with pytest.raises(OSError, match="srun cut line 0 in two"):
        stream.read(0.1)


def test_what_a_node_says_before_its_end_is_read_first():
    stream = carried([b"a", b"b"])
    assert not stream.end(OSError("srun ended"))
    assert stream.end(None)
    assert [stream.read(0.1), stream.read(0.1)] == [b"a", b"b"]
    with pytest.raises(OSError, match="srun ended"):
        stream.read(0.1)
    with pytest.raises(TimeoutError):
        carried([]).read(0.01)


def test_a_node_finds_its_number_by_its_name_else_by_its_place():
    assert relay.find_number("b,a", {"SLURMD_NODENAME": "a", "SLURM_NODEID": "0"}) == 1
    assert relay.find_number("b,a", {"SLURMD_NODENAME": "a.site", "SLURM_NODEID": "0"}) == 0
