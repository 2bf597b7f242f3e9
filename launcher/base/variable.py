"""Names of environment variables: which are sent, which never, which the launcher sets, which are secret.

Pure tables and functions over names, used on the head by ``env`` and by all that shows or saves values.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from functools import cache
from types import MappingProxyType

#: names taken along from the head's environment without being asked for (documented in docs/environment.md)
SENT_PATTERNS = (
    "NCCL_*", "RCCL_*", "HSA_*", "HIP_*", "ROCM_*", "ROCR_*", "MIOPEN_*", "GLOO_*", "UCX_*", "SHCA_*",
    "GPU_MAX_HW_QUEUES", "TORCH_*", "PYTORCH_*", "OMP_*", "HF_*", "TRANSFORMERS_*", "TOKENIZERS_*",
    "PYTHONPATH", "LD_LIBRARY_PATH", "DTKROOT",
)  # fmt: skip

#: each rank's place in the run: set by the launcher alone, never inherited from any environment
LAUNCHER_NAMES = frozenset({
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "NODE_RANK",
    "ROLE_RANK", "ROLE_NAME", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
    "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_USE_AGENT_STORE",
})  # fmt: skip
LAUNCHER_PREFIXES = ("TORCHELASTIC_", "DCU_LAUNCH_")
#: what mpirun and srun tell their own ranks: not inherited either, Accelerate would believe it
FOREIGN_RANK_PREFIXES = ("OMPI_COMM_WORLD_", "PMI_", "PMIX_")

#: for every rank, where still unset
RANK_DEFAULTS = MappingProxyType({"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1", "PYTHONUNBUFFERED": "1"})

#: on DCU nodes, where still unset after everything the user said
DCU_DEFAULTS = MappingProxyType({
    # In almost every multi-card training script for DCU: without it RCCL warns, and its LL protocol can hang
    # at 99 % CPU or end in a VMFault.
    "HSA_FORCE_FINE_GRAIN_PCIE": "1",
    # The vendor's training environments switch copies by the SDMA engines off, by one spelling or the other;
    # a release that does not know a spelling ignores it.
    "RCCL_SDMA_COPY_ENABLE": "0",
    "NCCL_SDMA_COPY_ENABLE": "0",
    # Left out on purpose: GPU_MAX_HW_QUEUES=4 is the runtime's own default; NCCL_ALGO, NCCL_NET_GDR_*,
    # NCCL_IB_* and NCCL_PLUGIN_P2P depend on the fabric; CUDA_DEVICE_MAX_CONNECTIONS=1 is for tensor
    # parallelism; HIP_KERNEL_*, HSA_KERNARG_POOL_SIZE, *_STREAM_WITH_COMPUTE are inference tuning.
})  # fmt: skip

#: where one of these is set, the hosts of the run are added to no_proxy
PROXY_NAMES = ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")

_READONLY = frozenset({"UID", "EUID", "PPID", "BASHOPTS", "SHELLOPTS", "BASH_VERSINFO"})
_MACHINE_PATTERNS = (
    "PATH", "SSH_*", "SLURM_*", "SLURMD_*", "XDG_*", "PWD", "OLDPWD", "HOSTNAME", "HOME", "USER", "LOGNAME",
    "SHELL", "DISPLAY", "TMPDIR",
)  # fmt: skip
_SECRET_WORDS = frozenset({
    "TOKEN", "TOKENS", "KEY", "KEYS", "SECRET", "SECRETS", "PASSWORD", "PASSWORDS", "PASSWD", "PASSPHRASE",
    "CREDENTIAL", "CREDENTIALS",
})  # fmt: skip
# A word may also end so (MYPASSWORD, APIKEY); bare "KEY" at the end of a word proves nothing: MONKEY, TURKEY.
_SECRET_ENDING = re.compile(
    r"(TOKEN|SECRET|PASSWORD|PASSWD|(API|ACCESS|SECRET|PRIVATE|AUTH|SSH|ENCRYPTION)KEY)"
)
_NUMBER = re.compile(r"[+-]?[0-9.]+(e[+-]?[0-9]+)?", re.IGNORECASE)
_URL_LOGIN = re.compile(r"(?<=://)[^/@\s]+(?=@)")
MASK = "***"


def is_name(name: str) -> bool:
    """Whether a shell can hold a variable of this name."""
    return re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) is not None


def is_launcher_name(name: str) -> bool:
    """Whether only the launcher gives this variable to ranks."""
    return name in LAUNCHER_NAMES or name.startswith(LAUNCHER_PREFIXES)


def is_visibility(name: str) -> bool:
    """Whether the variable chooses the cards a process sees, by numbers that hold on one machine only."""
    return name in ("GPU_DEVICE_ORDINAL", "NVIDIA_VISIBLE_DEVICES") or name.endswith("_VISIBLE_DEVICES")


def is_inherited(name: str) -> bool:
    """Whether a rank on this machine may keep the variable from the shell dcu-launch was started in."""
    return not is_launcher_name(name) and not name.startswith(FOREIGN_RANK_PREFIXES)


@cache
def match_pattern(name: str) -> str | None:
    """The pattern of SENT_PATTERNS by which the name is sent, or None."""
    return next((pattern for pattern in SENT_PATTERNS if fnmatchcase(name, pattern)), None)


def why_not_settable(name: str) -> str:
    """Why a user cannot set this variable by name; empty when it can be set."""
    if name in ("MASTER_ADDR", "MASTER_PORT"):
        return "set by the launcher; use --" + name.lower().replace("_", "-")
    return _why_never(name)


@cache  # asked for every variable of the head, for every host
def why_not_sent(name: str, to_this_machine: bool = False) -> str:
    """Why a variable of the head is not sent by pattern; empty when it is sent.

    Args:
        to_this_machine: the ranks start on the head itself, so that card numbers mean the same.
    """
    if name.startswith("BASH_FUNC_") or name.endswith(("%%", "()")):
        return "a shell function"
    never = _why_never(name)
    if never:
        return never
    if is_visibility(name):
        cure = "use devices= or env.NAME= in the hostfile, or --env"
        return "" if to_this_machine else f"card numbers differ from node to node: {cure}"
    return "" if match_pattern(name) else _why_unmatched(name)


def _why_unmatched(name: str) -> str:
    if any(fnmatchcase(name, pattern) for pattern in _MACHINE_PATTERNS):
        return "belongs to this machine or login"
    if name in (*PROXY_NAMES, "no_proxy", "NO_PROXY"):
        return "each node keeps its own proxy; --env sends it"
    if not is_inherited(name):
        return "tells a rank of another launcher its place"
    return "no pattern matches it; --env sends it"


def _why_never(name: str) -> str:
    if not is_name(name):
        return "not a name that a shell can hold"
    if is_launcher_name(name):
        return "set by the launcher for each rank"
    return "readonly in bash" if name in _READONLY else ""


def is_secret(name: str) -> bool:
    """Whether TOKEN, KEY, SECRET or PASSWORD is a part of the name (not TOKENIZERS, not MONKEY)."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    words = [word for word in re.split(r"[^A-Za-z0-9]+", spaced.upper()) if word]
    return any(
        word in _SECRET_WORDS or re.fullmatch(rf".*{_SECRET_ENDING.pattern}S?[0-9]*", word) for word in words
    )


def mask(name: str, value: str) -> str:
    """The value as it may be shown or saved: hidden for secret names, logins taken out of URLs."""
    return MASK if value and is_secret(name) else _URL_LOGIN.sub(MASK, value)


def mask_words(words: Sequence[str]) -> list[str]:
    """Arguments of a program as they may be shown or saved: ``--hf_token x``, ``--hf_token=x`` and ``hf_token=x`` lose x.

    A number is no secret: ``--max_tokens 4096`` stays.
    """
    shown: list[str] = []
    names_secret = False
    for word in words:
        name, equals, value = word.partition("=")
        hides = names_secret and not word.startswith("-")
        names_secret = not equals and word.startswith("-") and is_secret(word)
        if hides and not _NUMBER.fullmatch(word):
            shown.append(MASK)
        elif equals and is_secret(name) and not _NUMBER.fullmatch(value):
            shown.append(f"{name}={mask(name, value)}")
        else:
            shown.append(mask("", word))
    return shown


def printable(text: str, limit: int | None = None) -> str:
    """Text for a screen: control characters and broken bytes visible, at most ``limit`` characters."""
    visible = "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)
    return visible if limit is None or len(visible) <= limit else visible[: limit - 3] + "..."
