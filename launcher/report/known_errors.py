"""Texts that failing ranks write, what they mean on a DCU and what cures them. Data, and one look-up in it."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class KnownError:
    """A text that is known.

    Attributes:
        pattern: regular expression that finds it.
        in_log: it counts wherever it stands in the end of a log, not only in the error itself.
    """

    pattern: str
    cause: str
    cure: str
    in_log: bool = False


#: the first that matches counts: exact ones stand above general ones
KNOWN_ERRORS = (
    KnownError(
        r"--start fork: the import process .* was to host the store",
        "the process that imports the training stack once for all ranks of a node is gone (memory, or a broken library)",
        "--start spawn has each rank import it, and shows what it dies of",
    ),
    KnownError(
        r"symbol roctracer_next_record, version HIP not defined",
        "another DTK is loaded than torch was built for, or this is a login node",
        "load the DTK that torch's version names (+das...dtkNNNN), on a compute node",
    ),
    KnownError(
        r"libamdhip64\.so.*version [`']hip_[\d.]+' not found",
        "a wheel for upstream ROCm is installed on DTK",
        "install the wheel built for this DTK (its version ends in .dtkNNNN)",
    ),
    KnownError(
        r"lib(?:galaxyhip|amdhip64)\.so[\w.]*: cannot open shared object file",
        "the DTK environment is not set up in the ranks' shell",
        "--setup /opt/dtk/env.sh, or setup= in the hostfile where DTK is elsewhere",
    ),
    KnownError(
        r"lib(?:rocm_smi64|hydmi|hsa-runtime\w*)\.so[\w.]*: cannot open shared object file",
        "/opt/hyhal, the user part of the driver, is missing (in a container: not mounted)",
        "mount it with -v /opt/hyhal:/opt/hyhal:ro and add /opt/hyhal/lib to LD_LIBRARY_PATH",
    ),
    KnownError(
        r"undefined symbol: _ZN\w*(?:c10|at|torch)",
        "an extension was built for another torch",
        "install its wheel for this torch (.torchNNN in its version)",
    ),
    KnownError(
        r"launch \(\d+\) threads out of range \(\d+\)|hipErrorNoBinaryForGpu|no kernel image is available",
        "a kernel was built for another card",
        "compare torch.cuda.get_arch_list() with the card's gfx name; install the wheel for this DTK and card",
    ),
    KnownError(
        r"hipErrorNoDevice|no ROCm-capable device|No HIP GPUs are available",
        "the rank sees no card: driver, device files or HIP_VISIBLE_DEVICES",
        "on that node: hy-smi, ls -l /dev/kfd /dev/dri, groups (video, 39); in a container, mount them",
    ),
    KnownError(
        r"invalid device ordinal",
        "the rank asks for a card beyond those it may see",
        "compare slots= and devices= in the hostfile with hy-smi; in the script use LOCAL_RANK",
    ),
    KnownError(
        r"hipErrorPeerAccessUnsupported",
        "the cards cannot reach each other over PCIe",
        "switch IOMMU and ACS off in the BIOS",
    ),
    KnownError(
        r"HSA_STATUS_ERROR_EXCEPTION",
        "a fault on the card itself",
        "check that torch and DTK belong together; try a smaller load, then another card (devices=)",
        in_log=True,
    ),
    KnownError(
        r"GCEA err",
        "the card reports a hardware fault",
        "leave it out (devices= in the hostfile) and have it replaced",
        in_log=True,
    ),
    KnownError(
        r"VMFault|Memory access fault by GPU",
        "a card touched memory it may not",
        "HSA_FORCE_FINE_GRAIN_PCIE=1 must reach every rank (dcu-launch env shows it); torch and DTK must fit",
        in_log=True,
    ),
    KnownError(
        r"hipDeviceGetAttribute\(\): invalid argument|HIP error: invalid argument",
        "a program built for upstream ROCm, or wrong arguments of a kernel",
        "install wheels built for this DTK; HIP_LAUNCH_BLOCKING=1 shows the operator",
    ),
    KnownError(
        r"rocBLAS warning: No paths matched|ROCBLAS_TENSILE_LIBPATH is set correctly",
        "ROCBLAS_TENSILE_LIBPATH points into another DTK",
        "--env ROCBLAS_TENSILE_LIBPATH-",
        in_log=True,
    ),
    KnownError(
        r"unhandled system error",
        "RCCL could not use the network: names of cards or interfaces, a firewall, memory locks",
        "--env NCCL_DEBUG=INFO; compare NCCL_SOCKET_IFNAME and NCCL_IB_HCA with each node (env.NAME= in the hostfile)",
    ),
    KnownError(
        r"Connect/recv failed",
        "a firewall between the nodes, or the wrong interface",
        "NCCL_SOCKET_IFNAME for each node (env.NAME= in the hostfile); open the ports between them",
        in_log=True,
    ),
    KnownError(
        r"NCCL error.*invalid usage|ncclInvalidUsage",
        "two ranks on one card, or NCCL_* variables that do not fit",
        "dcu-launch env shows what is sent; each rank must use the card of its LOCAL_RANK",
    ),
    KnownError(
        r"Unable to find address for:",
        "GLOO_SOCKET_IFNAME names an interface that this node lacks",
        "give each node its own: env.GLOO_SOCKET_IFNAME= in the hostfile",
    ),
    KnownError(
        r"(?i)(?:HIP|CUDA) out of memory|OutOfMemoryError|hipErrorOutOfMemory",
        "the card's memory is full",
        "a smaller micro-batch or shorter sequences, re-computation, or ZeRO; hy-smi shows who else uses the card",
    ),
    KnownError(
        r"MIOpen.*librt\.so|librt\.so.*not found",
        "DTK's MIOpen on a system with glibc 2.34 or newer",
        "link with -lrt, or install the package that brings librt.so",
    ),
    KnownError(
        r"terminate called without an active exception",
        "a thread of torch.distributed was alive when Python ended: a model under DDP keeps its process group",
        "at the script's end let go of the model before the group: accelerator.free_memory() or del model, then "
        "accelerator.end_training() or torch.distributed.destroy_process_group()",
    ),
    KnownError(
        r"DataLoader worker .* killed by signal: Bus error|insufficient shared memory",
        "shared memory (/dev/shm) is full",
        "start the container with a larger --shm-size or --ipc=host, or use fewer data workers",
    ),
    KnownError(
        r"Expected all tensors to be on the same device|tensors on different devices",
        "known of DeepSpeed ZeRO-3 with offload to the CPU",
        "switch offload off",
    ),
    KnownError(
        r"EADDRINUSE|[Aa]ddress already in use",
        "somebody else has the port on the first node",
        "leave --master-port out: a free one is chosen",
    ),
    KnownError(
        r"unrecognized arguments: --local[-_]rank",
        "the script does not know the option",
        "leave --local-rank-arg out: the script finds its rank in LOCAL_RANK",
    ),
    KnownError(
        r"arguments are required:.*--local[-_]rank",
        "the script was written for a launcher that passes its rank as an option",
        "read LOCAL_RANK from the environment instead",
    ),
    KnownError(
        r"No space left on device",
        "a disk is full",
        "df -h on that node: run folder, /tmp, ~/.cache",
    ),
    KnownError(
        r"ModuleNotFoundError: No module named|: No module named ",
        "the interpreter of that node lacks the package, or PYTHONPATH differs",
        "name the right one: python= in the hostfile, --python, or --setup venv:DIR",
    ),
)  # fmt: skip


#: what a signal means that nobody of the run sent
KNOWN_SIGNALS: Mapping[int, str] = MappingProxyType({
    signal.SIGKILL: "the system or a person did that; out of memory? dmesg -T | grep -i -E 'oom|killed process'",
    signal.SIGTERM: "somebody else stopped it: a person, a batch system, a container that ended",
    signal.SIGILL: "a wheel was built for another CPU (DeepSpeed's cpu_adam needs AVX512); no offload to the CPU",
    signal.SIGBUS: "shared memory is full, or a file shrank; a larger --shm-size, or fewer data workers",
})  # fmt: skip


def find_known(text: str, log: str = "") -> KnownError | None:
    """The known error that an error's text, or else the log around it, tells of; None for an unknown one."""
    in_text = (known for known in KNOWN_ERRORS if re.search(known.pattern, text))
    in_log = (known for known in KNOWN_ERRORS if known.in_log and re.search(known.pattern, log))
    return next(in_text, None) or next(in_log, None)
