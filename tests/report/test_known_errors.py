from __future__ import annotations

import re

import pytest

from launcher.report.known_errors import KNOWN_ERRORS, KNOWN_SIGNALS, find_known

#: texts as they were reported, and a word of the cure
TEXTS = [
    ("ImportError: libgalaxyhip.so.5: cannot open shared object file: No such file or directory", "env.sh"),
    ("OSError: librocm_smi64.so.2: cannot open shared object file", "/opt/hyhal"),
    ("libhydmi.so: cannot open shared object file", "/opt/hyhal"),
    ("ImportError: libhsa-runtime64.so.1: cannot open shared object file", "/opt/hyhal"),
    ("libamdhip64.so: version 'hip_4.2' not found", ".dtkNNNN"),
    ("/lib/libamdhip64.so.5: version `hip_4.2' not found (required by libtorch_hip.so)", ".dtkNNNN"),
    ("--start fork: the import process ended (SIGKILL), which was to host the store where all ranks meet", "--start spawn"),
    ("symbol roctracer_next_record, version HIP not defined in file libgalaxyhip.so.5", "compute node"),
    ("ImportError: flash_attn.so: undefined symbol: _ZN3c1017RegisterOperatorsD1Ev", ".torchNNN"),
    ("RuntimeError: No HIP GPUs are available", "hy-smi"),
    ("hipErrorNoDevice", "hy-smi"),
    ("no ROCm-capable device is detected", "/dev/kfd"),
    ("RuntimeError: HIP error: invalid device ordinal", "LOCAL_RANK"),
    ("RuntimeError: HIP error: invalid argument", "DTK"),
    ("hipDeviceGetAttribute(): invalid argument", "DTK"),
    ("hipErrorNoBinaryForGpu: Unable to find code object for all current devices!", "get_arch_list"),
    ("launch (512) threads out of range (256)", "get_arch_list"),
    ("rocBLAS warning: No paths matched /opt/dtk/lib/library/*gfx928*co. Make sure that ROCBLAS_TENSILE_LIBPATH "
     "is set correctly.", "ROCBLAS_TENSILE_LIBPATH-"),
    ("NCCL error: unhandled system error", "NCCL_DEBUG=INFO"),
    ("torch.distributed.DistBackendError: NCCL error in: x.cpp:1, unhandled system error (run with NCCL_DEBUG=INFO "
     "for details)", "NCCL_SOCKET_IFNAME"),
    ("NCCL WARN: Connect/recv failed", "NCCL_SOCKET_IFNAME"),
    ("NCCL error: invalid usage", "LOCAL_RANK"),
    ("Gloo error: Unable to find address for: eth9", "GLOO_SOCKET_IFNAME"),
    ("hipErrorPeerAccessUnsupported", "IOMMU"),
    ("HSA_STATUS_ERROR_EXCEPTION: An HSAIL operation resulted in a hardware exception. code: 0x1016", "devices="),
    ("torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 GiB", "micro-batch"),
    ("MIOpen: librt.so not found", "-lrt"),
    ("Memory access fault by GPU node-1 (Agent handle: 0x1) on address 0x2. Reason: Unknown.", "FINE_GRAIN"),
    ("GCEA err", "replaced"),
    ("RuntimeError: Expected all tensors to be on the same device", "offload"),
    ("RuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error.", "--shm-size"),
    ("terminate called without an active exception", "free_memory"),
    ("torch.distributed.DistNetworkError: EADDRINUSE, address already in use", "--master-port"),
    ("t.py: error: unrecognized arguments: --local_rank=3", "LOCAL_RANK"),
    ("t.py: error: the following arguments are required: --local_rank", "LOCAL_RANK"),
    ("OSError: [Errno 28] No space left on device", "df -h"),
    ("ModuleNotFoundError: No module named 'peft'", "python="),
]  # fmt: skip


@pytest.mark.parametrize(("text", "cure"), TEXTS)
def test_texts_as_they_were_reported_are_known(text: str, cure: str) -> None:
    known = find_known(text)
    assert known is not None
    assert cure in known.cure


def test_every_entry_is_met_by_a_reported_text() -> None:
    found = {find_known(text) for text, _ in TEXTS}
    assert found == set(KNOWN_ERRORS)


@pytest.mark.parametrize(
    "text",
    [
        "ncclCommInitRankConfigMemOpt is not supported",
        "ValueError: 坏数据 第3行",
        "RuntimeError: Connection closed by peer",
        "",
    ],
)
def test_other_texts_are_not(text: str) -> None:
    assert find_known(text) is None


def test_only_what_is_sure_counts_from_elsewhere_in_the_log() -> None:
    log = "No module named 'flash_attn', going on\nGCEA err\nhipErrorNoDevice"
    assert find_known("ValueError: x", log) == find_known("GCEA err")
    assert find_known("ValueError: x", "No module named 'flash_attn', going on") is None
    assert find_known("hipErrorNoDevice", log) == find_known("hipErrorNoDevice")


def test_causes_and_cures_are_single_lines_without_a_full_stop() -> None:
    texts = [text for known in KNOWN_ERRORS for text in (known.cause, known.cure)] + list(
        KNOWN_SIGNALS.values()
    )
    assert len(texts) > 50
    assert [text for text in texts if not text or "\n" in text or re.search(r"[.;,]$", text)] == []
