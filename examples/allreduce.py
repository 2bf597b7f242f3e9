"""Add up the ranks with one all-reduce: the smallest script that proves that all processes talk to each other.

    torchrun --nproc-per-node 2 allreduce.py
    dcu-launch --hosts hostfile allreduce.py

Knows nothing of who starts it: it reads the usual variables (RANK, WORLD_SIZE, MASTER_ADDR, ...), and without them is a world
of one. On cards the backend is nccl, which is RCCL on a DCU; without cards it is gloo.
"""

import json
import os
import socket

import torch
import torch.distributed as dist


def main() -> None:
    on_card = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if on_card else torch.device("cpu")
    if on_card:
        torch.cuda.set_device(device)
    backend = "nccl" if on_card else "gloo"
    if "RANK" in os.environ:
        dist.init_process_group(backend)
    else:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)

    rank, world_size = dist.get_rank(), dist.get_world_size()
    total = torch.tensor([float(rank + 1)], device=device)
    dist.all_reduce(total)
    expected = world_size * (world_size + 1) / 2
    facts = {
        "rank": rank,
        "world_size": world_size,
        "host": socket.gethostname(),
        "device": str(device),
        "backend": dist.get_backend(),
        "sum": total.item(),
    }
    print(json.dumps(facts), flush=True)
    dist.destroy_process_group()
    if total.item() != expected:
        raise SystemExit(f"rank {rank}: the sum is {total.item()}, not {expected}")


if __name__ == "__main__":
    main()
