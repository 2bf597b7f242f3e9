"""What every launcher under test starts: meet, all-reduce once, say when. Rank 0 writes the moment to the file in argv."""

import sys
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
moment = time.monotonic()
if dist.get_rank() == 0:
    # DeepSpeed's launcher puts an argument of its own in front
    with open(next(word for word in sys.argv[1:] if not word.startswith("--local_rank")), "w") as file:
        file.write(f"{moment} {int(total.item())}")
dist.barrier()
dist.destroy_process_group()
