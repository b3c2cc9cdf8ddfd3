"""A small DDP training job, which can leak on one rank, to hang, and to say what it holds.

Run it on the fake CUDA:
    tests/fake_cuda/run -n 4 -- target/venv/bin/torchrun --nproc-per-node 4 \
        tests/torch/train_ddp.py --steps 200
It runs as well on real GPUs: gloo carries the gradients either way.

A student transformer learns the features of a frozen teacher, with a loss per element, weighted by a
mask. With --leak-rank R, rank R collects the losses for a histogram and forgets to detach them. Of the
graph that each of them holds, backward has freed all that it had saved; what stays is the unreduced
loss itself, 32 x 256 x 64 floats = 2 MiB a step, allocated at the line marked CULPRIT and kept alive
by the line marked LEAK.

With --stats PREFIX every rank writes PREFIX.rankN.jsonl: one line after each optimizer step, with what
PyTorch's allocator says at that very moment. It is the truth to compare a recorder with.
"""

import argparse
import json
import os
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_post_hook

VOCABULARY, FEATURES, HEADS, LAYERS = 1000, 64, 4, 2
BATCH, EVAL_BATCH, SEQUENCE = 32, 48, 256


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention_norm = nn.LayerNorm(FEATURES)
        self.qkv = nn.Linear(FEATURES, 3 * FEATURES)
        self.projection = nn.Linear(FEATURES, FEATURES)
        self.mlp_norm = nn.LayerNorm(FEATURES)
        self.up = nn.Linear(FEATURES, 4 * FEATURES)
        self.down = nn.Linear(4 * FEATURES, FEATURES)

    def forward(self, x):
        batch, sequence, _ = x.shape
        qkv = self.qkv(self.attention_norm(x)).view(batch, sequence, 3, HEADS, FEATURES // HEADS)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        scores = torch.softmax(q @ k.transpose(-2, -1) * (FEATURES // HEADS) ** -0.5, dim=-1)
        mixed = (scores @ v).transpose(1, 2).reshape(batch, sequence, FEATURES)
        x = x + self.projection(mixed)
        return x + self.down(F.gelu(self.up(self.mlp_norm(x))))


class Student(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, FEATURES)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.head = nn.Linear(FEATURES, FEATURES)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Statistics:
    """Writes the allocator's own numbers after every optimizer step, and allocates nothing."""

    FIELDS = {
        "allocated": "allocated_bytes.all.current",
        "reserved": "reserved_bytes.all.current",
        "active_blocks": "allocation.all.current",
        "num_alloc_retries": "num_alloc_retries",
        "num_ooms": "num_ooms",
        "allocations": "allocation.all.allocated",
        "frees": "allocation.all.freed",
    }

    def __init__(self, path):
        self.file = open(path, "w", buffering=1)
        self.step = 0
        register_optimizer_step_post_hook(self.after_step)

    def after_step(self, optimizer, args, kwargs):
        self.step += 1
        stats = torch.cuda.memory_stats()
        line = {"step": self.step} | {name: stats[key] for name, key in self.FIELDS.items()}
        self.file.write(json.dumps(line) + "\n")


def batch_of(size, device):
    tokens = torch.randint(VOCABULARY, (size, SEQUENCE)).to(device)
    mask = (torch.rand(size, SEQUENCE, 1) < 0.8).float().to(device)
    return tokens, mask


@torch.no_grad()
def evaluate(model, teacher, device):
    model.eval()
    total = torch.zeros((), device=device)
    for _ in range(2):
        tokens, mask = batch_of(EVAL_BATCH, device)
        total += (F.mse_loss(model(tokens), teacher(tokens), reduction="none") * mask).mean()
    model.train()
    return total.item()


def train(options, rank, device):
    teacher = nn.Embedding(VOCABULARY, FEATURES).to(device).requires_grad_(False)
    model = DistributedDataParallel(Student().to(device), device_ids=[device.index])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    losses = []

    for step in range(1, options.steps + 1):
        started = time.monotonic()
        if step == options.hang_at and rank == options.hang_rank:
            time.sleep(1e9)

        tokens, mask = batch_of(BATCH, device)
        prediction = model(tokens)
        loss = F.mse_loss(prediction, teacher(tokens), reduction="none")  # CULPRIT
        if rank == options.leak_rank:
            losses.append(loss)  # LEAK
        (loss * mask).mean().backward()
        optimizer.step()
        optimizer.zero_grad()

        if step % options.eval_every == 0:
            score = evaluate(model.module, teacher, device)
            if rank == 0:
                print(f"step {step}: eval loss {score:.3f}", flush=True)
        time.sleep(max(0.0, options.step_ms / 1000 - (time.monotonic() - started)))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--step-ms", type=float, default=0, help="least duration of a step")
    parser.add_argument("--eval-every", type=int, default=50, metavar="STEPS")
    parser.add_argument("--leak-rank", type=int, metavar="RANK")
    parser.add_argument("--hang-at", type=int, metavar="STEP")
    parser.add_argument("--hang-rank", type=int, default=0, metavar="RANK")
    parser.add_argument("--stats", metavar="PREFIX", help="write PREFIX.rankN.jsonl")
    options = parser.parse_args()

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    if options.stats:
        Statistics(f"{options.stats}.rank{rank}.jsonl")

    started = time.monotonic()
    train(options, rank, device)
    if rank == 0:
        per_step = (time.monotonic() - started) / options.steps
        print(f"done: {options.steps} steps, {1000 * per_step:.1f} ms a step", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
