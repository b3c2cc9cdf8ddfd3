"""Rollouts live in a `torch.cuda.MemPool` of their own, so that they do not break up the trainer's memory.

vLLM's sleep mode (vllm-project/vllm-ascend#1295) and pytorch/pytorch#151487 use pools like this. A replay buffer of
eight rollouts, the oldest goes. With --keep a second list has them all, for a plot of how the policy changed; no
CUDA graph is anywhere.
"""

import sys
from collections import deque

import torch
from common import CURED, done, network, onset, parallel, start, steps

PROMPTS, WIDTH, UPDATES, REPLAYED, ITERATIONS = 1024, 512, 8, 8, 170


@torch.no_grad()
def roll_out(policy, pool, device):
    prompts = torch.randn(PROMPTS, WIDTH, device=device)
    with torch.cuda.use_mem_pool(pool):
        return policy(prompts)  # CULPRIT


def main():
    rank, device = start()
    policy = parallel(network(WIDTH), device)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-6)
    pool, replay, history = torch.cuda.MemPool(), deque(maxlen=REPLAYED), []
    step = 1
    for _ in steps(ITERATIONS, pace_ms=300):
        rollout = roll_out(policy.module, pool, device)
        replay.append(rollout)
        if "--keep" in sys.argv:
            history.append(rollout.mean().item() if CURED else rollout)
            if step == 1:
                onset(step)
        for update in range(UPDATES):
            policy(replay[update % len(replay)]).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            step += 1
    done()


main()
