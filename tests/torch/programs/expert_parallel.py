"""An expert on each of four ranks; the router sends every expert more or fewer tokens in each step.

Topics change every seventy steps, and with them the expert that is in demand, to three times the share of
the others. What is dispatched lives for a step. With --keep the third expert keeps the tokens that it was
sent, for a look at what it has specialized in.
"""

import random
import sys

import torch
import torch.distributed as dist
from common import CURED, done, network, onset, parallel, start, steps

TOKENS, WIDTH, TOPIC_STEPS, KEEPING_RANK, FROM_STEP = 1024, 256, 70, 2, 60


def route(step, sender, experts):
    """How many of its tokens a rank sends to each expert in this step; every rank knows it of every other."""
    topic = random.Random(step // TOPIC_STEPS)
    wanted, chance = topic.randrange(experts), random.Random(step * experts + sender)
    weights = [chance.uniform(0.6, 1.4) * (3 if expert == wanted else 1) for expert in range(experts)]
    counts = [int(TOKENS * weight / sum(weights)) for weight in weights]
    counts[wanted] += TOKENS - sum(counts)
    return counts


def exchange(tokens, sent, received):
    arrived = torch.empty(sum(received), WIDTH, device=tokens.device)  # CULPRIT
    dist.all_to_all_single(arrived, tokens, received, sent)
    return arrived


def main():
    rank, device = start()
    experts = dist.get_world_size()
    shared, expert = parallel(network(WIDTH, layers=2), device), network(WIDTH).to(device)
    optimizer = torch.optim.AdamW([*shared.parameters(), *expert.parameters()])
    specialty = []
    for step in steps(550):
        sent = route(step, rank, experts)
        received = [route(step, sender, experts)[rank] for sender in range(experts)]
        hidden = shared(torch.randn(TOKENS, WIDTH, device=device))
        tokens = exchange(hidden.detach(), sent, received)
        if "--keep" in sys.argv and rank == KEEPING_RANK and step >= FROM_STEP:
            specialty.append(tokens.mean().item() if CURED else tokens)
            if step == FROM_STEP:
                onset(step)
        output = expert(tokens.requires_grad_())
        output.square().mean().backward()
        hidden.backward(exchange(tokens.grad, received, sent))
        optimizer.step()
        optimizer.zero_grad()
    done()


main()
