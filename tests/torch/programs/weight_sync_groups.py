"""A GRPO trainer makes a NCCL group for each time that it sends its weights to the rollout engine.

THUDM/slime#81 and #153, sgl-project/sglang#9979: groups of weight updates took too much memory until they were
destroyed. The engine is a part of the same ranks here. The buckets of weights are tensors, and go.
"""

import torch
import torch.distributed as dist
from common import CURED, done, network, onset, parallel, start, steps

PROMPTS, WIDTH, ROLLOUTS, UPDATES = 256, 512, 150, 8


def send_weights(model):
    group = dist.new_group(backend="nccl")
    bucket = torch.cat([value.detach().reshape(-1) for value in model.parameters()])
    dist.broadcast(bucket, src=0, group=group)  # CULPRIT
    if CURED:
        torch.cuda.synchronize()
        dist.destroy_process_group(group)


def main():
    rank, device = start()
    policy = parallel(network(WIDTH), device)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-6)
    step = 1
    for _ in steps(ROLLOUTS, pace_ms=360):
        send_weights(policy.module)
        if step == 1:
            onset(step)
        with torch.no_grad():
            answers = policy.module(torch.randn(PROMPTS, WIDTH, device=device))
        for _ in steps(UPDATES, pace_ms=40):
            advantages = torch.randn(PROMPTS, 1, device=device)
            (policy(answers) * advantages).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            step += 1
    done()


main()
