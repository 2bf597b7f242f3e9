"""Every code that a finding can have, with its usual level and cure; docs/findings.md explains each of them.

Where the vendor's own environment check has a name for the same thing, the code is that name. Data; runs on the head.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass

from launcher.base.errors import UsageError

ERROR, WARNING, NOTE = "error", "warning", "note"


@dataclass(frozen=True, slots=True)
class Code:
    """The usual level and cure of a code."""

    level: str
    cure: str


_NAME_PYTHON = "name one: python=/path/to/python on the hostfile line, --python, or --setup venv:DIR"
_SAME_EVERYWHERE = "install the same version on all nodes"
_ONE_SET = "install wheels of one package set: all of them name the same dtk, and .torchNNN of this torch"

CODES = {
    # the interpreter and its packages
    "PYTHON_MISSING": Code(ERROR, _NAME_PYTHON),
    "PYTHON_TOO_OLD": Code(ERROR, _NAME_PYTHON),
    "PYTHON_TAG_MISMATCH": Code(
        ERROR, "install the wheel for this Python, or name the Python that it was built for"
    ),
    "STACK_MISSING": Code(
        ERROR,
        "install it there without touching torch (docs/install.md), or name another interpreter with --python",
    ),
    "TORCH_FOR_OTHER_DTK": Code(
        ERROR, "load the DTK that torch's version names (--setup .../env.sh), or install torch for this DTK"
    ),
    "TORCH_NOT_HIP_BUILD": Code(
        ERROR,
        "install the vendor's wheel for this DTK (its version ends in .dtkNNNN); pip's own replaces it silently",
    ),
    "ROCM_WHEEL_ON_DCU": Code(
        ERROR, "install the vendor's wheel for this DTK (its version ends in .dtkNNNN)"
    ),
    "HIP_FAMILY_DIFFERS": Code(ERROR, "load the DTK that torch was built for, or install torch for this DTK"),
    "WHEELS_OF_MIXED_DTK": Code(WARNING, _ONE_SET),
    "WHEEL_FOR_OTHER_TORCH": Code(WARNING, _ONE_SET),
    "TRITON_NOT_OF_DTK": Code(
        WARNING, "install the vendor's triton for this DTK; the public wheel has no code for this card"
    ),
    "NUMPY_TOO_NEW": Code(WARNING, "pip install 'numpy<2'"),
    "TRANSFORMERS_REFUSES_TORCH": Code(
        ERROR, "dcu-launch constraints prints the newest versions that this torch admits"
    ),
    # what a run needs
    "WORKDIR_MISSING": Code(
        ERROR, "start from a folder that all nodes share, name one with --workdir, or bring it with --sync"
    ),
    "PATH_MISSING": Code(ERROR, "put it there at the same path, or on a disk that all nodes share"),
    "RUN_DIR_NOT_WRITABLE": Code(ERROR, "name a place that every node can write to: --run-dir"),
    "DEVICE_MAP_AUTO": Code(
        ERROR,
        "with one rank a card, each rank puts the whole model on its own: device_map={'': LOCAL_RANK}, or no device_map",
    ),
    "LEARNING_RATE_UNUSUAL": Code(WARNING, "leave train.learning_rate out for the method's usual one"),
    "FEWER_CARDS_THAN_SLOTS": Code(
        ERROR, "correct slots= or devices= in the hostfile, or the visibility variable on that node"
    ),
    "VISIBILITY_CONTRADICTS": Code(
        ERROR,
        "set one of the variables alone: HIP_VISIBLE_DEVICES, or devices= in the hostfile, which unsets the others",
    ),
    # driver and device
    "HYCU_DRIVER_NOT_LOADED": Code(
        ERROR, "modprobe hycu (hydcu up to driver 6.2); after a kernel upgrade, install the driver again"
    ),
    "DRIVER_VERSION_UNAVAILABLE": Code(WARNING, "ask hy-smi --showdriverversion on that node"),
    "DRIVER_TOO_OLD": Code(ERROR, "install the driver that the vendor names for this DTK"),
    "DRIVER_NOT_IN_TABLE": Code(
        WARNING, "if it works, say so in a table of your site: --compat FILE (docs/findings.md)"
    ),
    "HCU_DEVICE_NODE_MISSING": Code(
        ERROR,
        "in a container: --device=/dev/kfd --device=/dev/mkfd --device=/dev/dri; else reload the driver",
    ),
    "DEVICE_NODE_DENIED": Code(
        ERROR, "usermod -a -G 39 USER (group video) and log in anew; in a container: --group-add video"
    ),
    "HYHAL_MISSING": Code(
        ERROR, "install the driver's user part; in a container mount it: -v /opt/hyhal:/opt/hyhal:ro"
    ),
    "CARD_TOOL_MISSING": Code(
        WARNING, "install the driver's user part; in a container mount it: -v /opt/hyhal:/opt/hyhal:ro"
    ),
    "CARD_TOOL_SILENT": Code(WARNING, "run hy-smi there by hand; a driver that hangs shows in dmesg"),
    "CARD_LOST": Code(WARNING, "look into dmesg for that card; reboot the node, or exclude it"),
    "CARD_NEEDS_NEWER_STACK": Code(ERROR, "install a driver and DTK that know this card"),
    "CARDS_BUSY": Code(WARNING, "wait for it, end it, or choose free cards with devices= in the hostfile"),
    # DTK and its libraries
    "DTK_NOT_SET_UP": Code(ERROR, "--setup /path/of/dtk/env.sh, or setup= on the hostfile line"),
    "DTK_VERSION_UNAVAILABLE": Code(WARNING, "name the DTK's real folder in DTKROOT: it has .info/version"),
    "DTKROOT_MISMATCH": Code(WARNING, "source the env.sh of one DTK only, or set all of them to one folder"),
    "DTK_NOT_IN_TABLE": Code(NOTE, "add it in a table of your site: --compat FILE (docs/findings.md)"),
    "LIBRARY_PATH_ORDER": Code(
        ERROR, "take the folder out of LD_LIBRARY_PATH, or put the DTK's lib folder before it"
    ),
    "RCCL_LIBRARY_NOT_FOUND": Code(ERROR, "source the DTK's env.sh: --setup /opt/dtk/env.sh"),
    "LIBRARY_NOT_LOADABLE": Code(
        ERROR, "ldd on that file names what it lacks; usually /opt/hyhal/lib or env.sh"
    ),
    "STALE_CACHE": Code(WARNING, "remove the cache folder; it is made anew"),
    "TENSILE_PATH_STRANGE": Code(WARNING, "unset ROCBLAS_TENSILE_LIBPATH (--env ROCBLAS_TENSILE_LIBPATH-)"),
    # network and system
    "INTERFACE_MISSING": Code(ERROR, "name an interface of that node: env.NAME=value on its hostfile line"),
    "HCA_MISSING": Code(ERROR, "name adapters of that node: env.NCCL_IB_HCA=value on its hostfile line"),
    "UCX_NOT_AVAILABLE": Code(
        WARNING,
        "put UCX's lib folder into LD_LIBRARY_PATH (--setup, or env.sh of the DTK), or unset NCCL_PLUGIN_P2P",
    ),
    "SAME_MACHINE_TWICE": Code(ERROR, "one line a machine in the hostfile, with all its slots"),
    "HCA_DOWN": Code(WARNING, "look at the cable and the subnet manager, or leave it out of NCCL_IB_HCA"),
    "MASTER_UNREACHABLE": Code(
        ERROR, "open the firewall between nodes, or name the training network with addr= or --master-addr"
    ),
    "FINE_GRAIN_OFF": Code(WARNING, "unset HSA_FORCE_FINE_GRAIN_PCIE: dcu-launch sets it to 1 on DCU nodes"),
    "MEMLOCK_LIMITED": Code(
        WARNING, "ulimit -l unlimited for this user; in a container: --ulimit memlock=-1:-1"
    ),
    "SHM_SMALL": Code(WARNING, "in a container: --shm-size=16g or --ipc=host"),
    "DISK_NEARLY_FULL": Code(WARNING, "free some of it, or name another place: --run-dir, XDG_CACHE_HOME"),
    # across nodes
    "VERSIONS_DIFFER": Code(WARNING, _SAME_EVERYWHERE),
    "DTK_DIFFERS": Code(ERROR, "load the same DTK on all nodes: --setup, or setup= in the hostfile"),
    "RCCL_DIFFERS": Code(
        ERROR, "load the same RCCL on all nodes: different builds hang or fail at the first collective"
    ),
    "HIP_DIFFERS": Code(WARNING, "load the same DTK on all nodes"),
    "DRIVER_DIFFERS": Code(WARNING, "install the same driver on all nodes"),
    "CARDS_DIFFER": Code(WARNING, "group equal nodes in one hostfile; the slowest card sets the pace"),
    "SYSTEM_DIFFERS": Code(NOTE, "usually harmless; remember it when only these nodes fail"),
    "ENVIRONMENT_DIFFERS": Code(WARNING, "set it for all nodes: --env NAME=VALUE"),
    "FILES_DIFFER": Code(ERROR, "bring the same files to all nodes, with --sync or on a shared disk"),
    "CLOCK_OFF": Code(WARNING, "start chrony or ntpd on that node"),
    "UNVERIFIED": Code(NOTE, "nothing was found that contradicts; what is unknown is not called equal"),
    # what only a process that imports torch can say
    "TORCH_IMPORT_FAILED": Code(ERROR, "run the import by hand in the same environment"),
    "TORCH_NATIVE_DEPENDENCY_MISSING": Code(
        ERROR, "source the DTK's env.sh and have /opt/hyhal: --setup /opt/dtk/env.sh"
    ),
    "TORCH_HCU_UNAVAILABLE": Code(
        ERROR, "rocminfo and hy-smi on that node: driver, /dev/kfd, group 39, visibility"
    ),
    "TORCH_DEVICE_COUNT_MISMATCH": Code(
        ERROR, "compare HIP_VISIBLE_DEVICES, ROCR_VISIBLE_DEVICES and hy-smi"
    ),
    "ARCH_MISMATCH": Code(ERROR, "install the torch wheel that was built for this card"),
    "RCCL_COMPILED_OTHER": Code(WARNING, "load the RCCL of the DTK that torch was built for"),
    "CARD_OPERATION_FAILED": Code(ERROR, "align DTK, driver and torch; then look into dmesg for that card"),
    "TORCH_CHECK_INCOMPLETE": Code(WARNING, "run dcu-launch check --ops on that node alone"),
    # check --ops
    "OPERATOR_WRONG": Code(WARNING, "do not train with it on this card; recipes choose another way"),
    "OPERATOR_CRASHED": Code(WARNING, "do not train with it on this card; recipes choose another way"),
    # check --comm
    "COLLECTIVE_FAILED": Code(
        ERROR, "compare NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME and NCCL_IB_HCA with the node's adapters"
    ),
    "NODE_SLOW": Code(
        WARNING,
        "compare its adapter, cable and switch port with another node's; name the fast network with addr= or NCCL_IB_HCA",
    ),
    "COLLECTIVE_HUNG": Code(
        ERROR, "look at that rank's node: its card, its adapter, a firewall between ports of ranks"
    ),
}

#: without these no rank can start: there is nothing to let through
NEVER_ALLOWED = frozenset({"PYTHON_MISSING", "WORKDIR_MISSING"})


def check_allowed(codes: Sequence[str]) -> None:
    """Look at what ``--allow`` names.

    Raises:
        UsageError: names every code that is none, or that cannot be let through.
    """
    wrong = []
    for code in dict.fromkeys(codes):
        if code in NEVER_ALLOWED:
            wrong.append(f"--allow {code}: no rank can start without it")
        elif code not in CODES:
            near = difflib.get_close_matches(
                code.upper(), [name for name in CODES if name not in NEVER_ALLOWED]
            )
            wrong.append(f"--allow {code}: no such finding" + (f"; did you mean {near[0]}?" if near else ""))
    if wrong:
        raise UsageError(
            "\n".join(wrong),
            "findings are listed in docs/findings.md; dcu-launch check shows those of your nodes",
        )
