"""A CUDA graph is captured for each new shape, each with a memory pool of its own.

pytorch/pytorch#128424 and #104095: pools of graphs are never given back, and with free lengths there is
always a new one. The trainer scores samples with the captured forward pass.
"""

import torch
from common import CURED, done, network, onset, parallel, start, steps

WIDTH, LENGTH_MIN, PADDED = 512, 256, 1024


class Scorer:
    def __init__(self, device):
        self.network, self.device = network(WIDTH, layers=2).to(device), device
        self.graphs = {}

    @torch.no_grad()
    def __call__(self, length):
        length = -(-length // PADDED) * PADDED if CURED else length
        if length not in self.graphs:
            static = torch.zeros(length, WIDTH, device=self.device)  # CULPRIT
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                scores = self.network(static)  # CULPRIT
            self.graphs[length] = (graph, static, scores)
        graph, _, scores = self.graphs[length]
        graph.replay()
        return scores


def main():
    rank, device = start()
    model = parallel(network(WIDTH), device)
    scorer = Scorer(device)
    optimizer = torch.optim.AdamW(model.parameters())
    for step in steps(800):
        if step == 1:
            onset(step)
        model(torch.randn(LENGTH_MIN, WIDTH, device=device)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 4 == 0:
            scorer(LENGTH_MIN + step)
    done()


main()
