"""Trains a small model with PyTorch's own memory history on, and writes its snapshots.

    snapshots.py HABIT FOLDER [--stacks python|all] [--ring N] [--steps N] [--dump-every N]

HABIT is clean, outputs (one hidden state stays a step), graph (a loss stays with the graph that no backward pass frees),
window (the last eight hidden states stay), sgd (clean, and the optimizer allocates nothing), or
pieces (free memory in pieces, then a request that fails). Writes FOLDER/rank0_N.pickle.
"""

import argparse
import pathlib
import pickle

import torch

kept = []


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(512, 512) for _ in range(6)])

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))  # GRAPH
        return x


def keep(habit, model, batch, hidden):
    if habit == "outputs":
        kept.append(hidden.detach().clone())  # OUTPUTS
    elif habit == "graph":
        kept.append(model(batch).square().mean())
    elif habit == "window":
        kept.append(hidden.detach().clone())
        del kept[:-8]


def train_step(habit, model, optimizer):
    batch = torch.empty(256, 512, device="cuda")
    hidden = model(batch)
    loss = hidden.square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    keep(habit, model, batch, hidden)


def in_pieces():
    """Every second one of many blocks goes, and then a request is larger than any gap."""
    blocks = [torch.empty(30 << 20, dtype=torch.uint8, device="cuda") for _ in range(4)]
    whole = torch.empty(600 << 20, dtype=torch.uint8, device="cuda")
    del whole
    blocks += [torch.empty(25 << 20, dtype=torch.uint8, device="cuda") for _ in range(22)]
    del blocks[5::2]
    try:
        torch.empty(350 << 20, dtype=torch.uint8, device="cuda")  # TOO LARGE
    except torch.cuda.OutOfMemoryError:
        pass
    else:
        raise SystemExit("the request did not fail")
    return blocks


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("habit")
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--stacks", default="python")
    parser.add_argument("--ring", type=int, default=100_000)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--dump-every", type=int, default=1_000_000)
    args = parser.parse_args()
    model = Model().cuda()
    if args.habit == "sgd":
        optimizer = torch.optim.SGD(model.parameters(), foreach=False)
    else:
        optimizer = torch.optim.AdamW(model.parameters())
    torch.cuda.memory._record_memory_history(max_entries=args.ring, stacks=args.stacks)
    for step in range(1, args.steps + 1):
        train_step(args.habit, model, optimizer)
        if step % args.dump_every == 0:
            torch.cuda.memory._dump_snapshot(str(args.folder / f"rank0_{step}.pickle"))
    alive = in_pieces() if args.habit == "pieces" else []
    torch.cuda.memory._dump_snapshot(str(args.folder / "rank0_end.pickle"))
    with open(args.folder / "segments.pkl", "wb") as file:
        pickle.dump(torch.cuda.memory_snapshot(), file)
    del alive


main()
