"""Fit a line with a plain Accelerate loop: the shape of most Accelerate scripts, without a model to download.

    accelerate launch accelerate_loop.py
    dcu-launch --hosts hostfile accelerate_loop.py --steps 40

Knows nothing of who starts it. Prints one JSON line a process: how many there are, the rows it trained on, what it learnt.
"""

import argparse
import json

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    parser = argparse.ArgumentParser(description="Fit y = 3x - 1 by data parallelism.")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch_size", type=int, default=8, help="rows a process and step")
    args = parser.parse_args()

    set_seed(0)
    accelerator = Accelerator()
    x = torch.linspace(-1, 1, 256).unsqueeze(1)
    rows = TensorDataset(torch.arange(len(x)), x, 3 * x - 1)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    loader = DataLoader(rows, batch_size=args.batch_size, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    seen: list[int] = []
    loss = torch.zeros(())
    while len(seen) < args.steps * args.batch_size:
        for numbers, inputs, targets in loader:
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            seen += numbers.tolist()
            if len(seen) >= args.steps * args.batch_size:
                break

    line = accelerator.unwrap_model(model)
    facts = {
        "rank": accelerator.process_index,
        "world_size": accelerator.num_processes,
        "device": str(accelerator.device),
        "loss": accelerator.gather(loss.detach().reshape(1)).mean().item(),
        "slope": line.weight.item(),
        "offset": line.bias.item(),
        "rows": seen,
    }
    print(json.dumps(facts), flush=True)
    # A model that still holds the process group keeps its threads alive beyond end_training; on gloo one of them may then
    # meet an interpreter that is ending, and the process dies by SIGABRT.
    model, optimizer, loader = accelerator.free_memory(model, optimizer, loader)
    accelerator.end_training()


if __name__ == "__main__":
    main()
