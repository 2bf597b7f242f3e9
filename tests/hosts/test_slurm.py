"""Allocations as Slurm's variables and scontrol tell them."""

import pytest

from launcher.base.errors import UsageError
from launcher.hosts.slurm import (
    expand_counts,
    expand_node_list,
    read_allocation,
    read_job_cards,
    read_kill_wait,
)

JOB = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "node[001-002]", "SLURMD_NODENAME": "node001"}
SHARED = "   OverSubscribe=OK Contiguous=0\n"


@pytest.fixture
def scontrol(tmp_path, monkeypatch):
    """Put a scontrol on PATH that says a text, or none at all."""

    def plant(text):
        if text is not None:
            (tmp_path / "said").write_text(text)
            (tmp_path / "scontrol").write_text(
                f'#!/bin/sh\n[ "$2" = config ] || [ "$4" = 7 ] && /bin/cat {tmp_path}/said\n'
            )
            (tmp_path / "scontrol").chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))

    return plant


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("node[001-002]", ["node001", "node002"]),
        ("b1,a[9-10,3]x,c", ["b1", "a9x", "a10x", "a3x", "c"]),
        ("r[1-2]n[08-09]", ["r1n08", "r1n09", "r2n08", "r2n09"]),
    ],
)
def test_node_lists(text, names):
    assert expand_node_list(text) == names


@pytest.mark.parametrize(
    ("text", "cards"),
    [
        ("     Nodes=n[1-2] CPU_IDs=0-1 Mem=1 GRES=dcu:2(IDX:0-1)\n", {"n1": ("0", "1"), "n2": ("0", "1")}),
        (
            "     Nodes=n1 CPU_IDs=0 Mem=1 GRES=dcu:3(IDX:0,2-3)\n     Nodes=n2 CPU_IDs=0 Mem=1 GRES=dcu:1(IDX:7)\n",
            {"n1": ("0", "2", "3"), "n2": ("7",)},
        ),
        ("     Nodes=n1 CPU_IDs=0 Mem=1 GRES=nic:1(IDX:4),gpu:k100:2(IDX:5,6)\n", {"n1": ("5", "6")}),
        ("     Nodes=n1 CPU_IDs=0-3 Mem=0 GRES_IDX=dcu(IDX:1)\n", {"n1": ("1",)}),
        ("     Nodes=n1 CPU_IDs=0 Mem=1 GRES=dcu:2(CNT:2)\n", {"n1": ()}),
        ("     Nodes=n1 CPU_IDs=0 Mem=1 GRES=\n", {}),
        ("   ReqNodeList=(null) NumNodes=2\n", {}),
    ],
)
def test_cards_of_a_job(text, cards):
    assert read_job_cards(text) == cards


def test_each_node_has_its_own_cards_in_slurms_order(scontrol):
    scontrol(
        SHARED
        + "     Nodes=node002 CPU_IDs=0 Mem=1 GRES=dcu:1(IDX:3)\n"
        + "     Nodes=node001 CPU_IDs=0 Mem=1 GRES=dcu:2(IDX:2-3)\n"
    )
    hosts = read_allocation(JOB, None)
    assert [(host.name, host.slots, host.devices, host.is_local, host.job) for host in hosts] == [
        ("node001", 2, ("2", "3"), False, "7"),
        ("node002", 1, ("3",), False, "7"),
    ]
    assert [host.slots for host in read_allocation(JOB, 1)] == [1, 1]


def test_one_node_that_this_runs_on_needs_no_step(scontrol):
    scontrol("     Nodes=node001 CPU_IDs=0 Mem=1 GRES=dcu:1(IDX:3)\n")
    assert read_allocation({**JOB, "SLURM_JOB_NODELIST": "node001"}, None)[0].is_local
    other = {**JOB, "SLURM_JOB_NODELIST": "node001", "SLURMD_NODENAME": "login"}
    assert not read_allocation(other, None)[0].is_local


def test_variables_that_slurm_set_are_left_to_each_node(scontrol):
    scontrol(None)
    hosts = read_allocation({**JOB, "SLURM_JOB_GPUS": "2,3", "ROCR_VISIBLE_DEVICES": "0,1"}, None)
    assert [(host.slots, host.devices, dict(host.env)) for host in hosts] == [(None, (), {})] * 2


def test_whole_nodes_need_no_numbers(scontrol):
    scontrol("   OverSubscribe=NO Contiguous=0\n")
    assert [(host.slots, host.devices) for host in read_allocation(JOB, None)] == [(None, ())] * 2


def test_a_job_without_cards_hides_those_of_others(scontrol):
    scontrol(SHARED)
    (host, _) = read_allocation(JOB, 3)
    assert (host.slots, dict(host.env)) == (3, {"HIP_VISIBLE_DEVICES": "", "CUDA_VISIBLE_DEVICES": ""})


def test_a_job_without_cards_runs_as_many_ranks_as_it_has_tasks(scontrol):
    scontrol(SHARED)
    asked = {**JOB, "SLURM_NTASKS": "3", "SLURM_TASKS_PER_NODE": "2,1"}
    assert [host.slots for host in read_allocation(asked, None)] == [2, 1]
    assert [host.slots for host in read_allocation(asked, 4)] == [4, 4]
    scontrol(SHARED + "     Nodes=node[001-002] CPU_IDs=0 Mem=1 GRES=dcu:4(IDX:0-3)\n")
    assert [host.slots for host in read_allocation(asked, None)] == [4, 4]


@pytest.mark.parametrize(
    ("text", "counts"),
    [("2(x3),1", [2, 2, 2, 1]), ("16", [16]), ("", []), ("2(x3),a", []), ("1,2(x2)", [1, 2, 2])],
)
def test_counts_of_nodes(text, counts):
    assert expand_counts(text) == counts


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (None, "scontrol is not on PATH"),
        (SHARED, "no GRES in"),
        (SHARED + "     Nodes=node001 CPU_IDs=0 Mem=1 GRES=dcu:2(CNT:2)\n", "nothing says which"),
        (SHARED + "     Nodes=node001 CPU_IDs=0 Mem=1 GRES=dcu:2(IDX:0-1)\n", "it has cards on node002"),
    ],
)
def test_unknown_cards_are_an_error_and_never_counted_up_from_zero(scontrol, said, message):
    scontrol(said)
    with pytest.raises(UsageError, match=message):
        read_allocation(JOB, None)


def test_what_is_no_allocation_for_one_head_is_an_error():
    with pytest.raises(UsageError, match="no Slurm allocation"):
        read_allocation({}, None)
    with pytest.raises(UsageError, match="srun started dcu-launch 4 times"):
        read_allocation({**JOB, "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4"}, None)
    with pytest.raises(UsageError, match="heterogeneous job"):
        read_allocation({**JOB, "SLURM_HET_SIZE": "2"}, None)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("KeepAliveTime           = SYSTEM_DEFAULT\nKillWait                = 30 sec\n", 30.0),
        ("", None),
        (None, None),
    ],
)
def test_what_slurm_leaves_a_job_to_end(scontrol, text, seconds):
    scontrol(text)
    assert read_kill_wait() == seconds
