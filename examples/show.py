"""Print what this process was started with, as one JSON line: ranks, arguments, and the variables that matter.

    python show.py ARGS...
    dcu-launch --hosts hostfile show.py ARGS...

Uses the standard library alone, so it runs on any node. Takes no options of its own: every argument is shown as it came.
"""

import json
import os
import socket
import sys

# fmt: off
PREFIXES = (
    "RANK", "LOCAL_", "WORLD_", "GROUP_", "ROLE_", "NODE_RANK", "MASTER_", "TORCHELASTIC_", "ACCELERATE_", "OMP_",
    "NCCL_", "RCCL_", "GLOO_", "HSA_", "HIP_", "ROCR_", "CUDA_", "MIOPEN_", "UCX_", "TORCH_",
    "DTKROOT", "ROCM_PATH", "LD_LIBRARY_PATH", "PYTHONPATH",
)
# fmt: on
SECRETS = ("TOKEN", "KEY", "SECRET", "PASSWORD")


def shown(name):
    return name.startswith(PREFIXES) and not any(word in name for word in SECRETS)


def main():
    facts = {
        "rank": int(os.environ.get("RANK", "0")),
        "local_rank": int(os.environ.get("LOCAL_RANK", "0")),
        "world_size": int(os.environ.get("WORLD_SIZE", "1")),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "python": sys.executable,
        "cwd": os.getcwd(),
        "argv": sys.argv,
        "env": {name: os.environ[name] for name in sorted(os.environ) if shown(name)},
    }
    # One write of one line: lines of several ranks on one terminal do not mix.
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
