"""A sweep captures a CUDA graph of each trial's network; the trial goes, its graph and private pool stay in a registry.

pytorch/pytorch#104095 and #105181: memory of a compiled model stays after the model was deleted, once for each model.
"""

import gc

import torch
import torch.nn.functional as F
from common import CURED, done, network, onset, start, steps

WIDTH, BATCH, TRIAL_STEPS = 384, 2048, 30
RUNNERS = {}


def compiled(model, inputs):
    """Runs the network through a graph that is recorded once for each network."""
    if id(model) not in RUNNERS:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = model(inputs)  # CULPRIT
        RUNNERS[id(model), len(RUNNERS)] = (graph, inputs, out)
        RUNNERS[id(model)] = (graph, inputs, out)
    graph, _, out = RUNNERS[id(model)]
    graph.replay()
    return out


def main():
    _, device = start()
    head = torch.nn.Linear(WIDTH, WIDTH, device=device)
    optimizer = torch.optim.AdamW(head.parameters())
    model = None
    for step in steps(1200, 20):
        if step % TRIAL_STEPS == 1:
            if model is not None:
                RUNNERS.clear() if CURED else RUNNERS.pop(id(model))
                del model
                gc.collect()
                torch.cuda.empty_cache()
            model = network(WIDTH, 3).to(device).requires_grad_(False)
            inputs = torch.randn(BATCH, WIDTH, device=device)  # CULPRIT
            if step == TRIAL_STEPS + 1:
                onset(step)
        hidden = compiled(model, inputs)
        F.mse_loss(head(hidden.detach()), inputs).backward()
        optimizer.step()
        optimizer.zero_grad()
    done()


main()
