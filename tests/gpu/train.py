"""An FSDP2 transformer under NCCL on real GPUs, with one fault that can be switched on.

    torchrun --nproc-per-node 4 tests/gpu/train.py --steps 400 [--leak-rank 2]

With --leak-rank R, rank R keeps the logits of every step "for a plot" and forgets to detach and move
them: 8 MiB a step, allocated at the line marked CULPRIT and kept alive by the line marked LEAK.
"""

import argparse
import os
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

VOCABULARY, FEATURES, HEADS, LAYERS = 1024, 2048, 16, 8
BATCH, SEQUENCE = 4, 1024


class Block(nn.Module):
    def __init__(self, features, heads):
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(features)
        self.qkv = nn.Linear(features, 3 * features)
        self.projection = nn.Linear(features, features)
        self.mlp_norm = nn.LayerNorm(features)
        self.up = nn.Linear(features, 4 * features)
        self.down = nn.Linear(4 * features, features)

    def forward(self, x):
        batch, sequence, features = x.shape
        qkv = self.qkv(self.attention_norm(x)).view(batch, sequence, 3, self.heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.projection(mixed.transpose(1, 2).reshape(batch, sequence, features))
        return x + self.down(F.gelu(self.up(self.mlp_norm(x))))


class Transformer(nn.Module):
    def __init__(self, features=FEATURES, heads=HEADS, layers=LAYERS):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, features)
        self.blocks = nn.ModuleList(Block(features, heads) for _ in range(layers))
        self.head = nn.Linear(features, VOCABULARY)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)  # CULPRIT


@torch.no_grad()
def evaluate(model, device):
    model.eval()
    for _ in range(4):
        model(torch.randint(VOCABULARY, (2 * BATCH, SEQUENCE), device=device))
    model.train()


def train(options, rank, device):
    model = Transformer().to(device)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    for block in model.blocks:
        fully_shard(block, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    kept = []

    started = time.monotonic()
    for step in range(1, options.steps + 1):
        tokens = torch.randint(VOCABULARY, (BATCH, SEQUENCE + 1), device=device)
        logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
        if rank == options.leak_rank:
            kept.append(logits)  # LEAK
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % options.eval_every == 0:
            evaluate(model, device)
            if rank == 0:
                print(f"step {step}: loss {loss.item():.3f}", flush=True)
    torch.cuda.synchronize()
    return (time.monotonic() - started) / options.steps


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--eval-every", type=int, default=100, metavar="STEPS")
    parser.add_argument("--leak-rank", type=int, metavar="RANK")
    options = parser.parse_args()

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    rank = dist.get_rank()
    torch.manual_seed(rank)
    per_step = train(options, rank, device)
    if rank == 0:
        print(f"done: {options.steps} steps, {1000 * per_step:.1f} ms a step", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
