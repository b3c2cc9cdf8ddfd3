"""Every save is staged on the device and written by a thread; the futures of all saves are kept with what they saved.

pytorch/pytorch#170163 and allenai/OLMo-core#856: the work item of an asynchronous save holds the staged state
longer than it is needed. Here the list of saves is there to wait for them at the end of the training.
"""

from concurrent.futures import ThreadPoolExecutor

import torch
from common import CURED, done, network, onset, parallel, start, steps

BATCH, WIDTH, SAVE_EVERY = 256, 768, 25


class Saver:
    def __init__(self):
        self.threads, self.saves = ThreadPoolExecutor(1), []

    def save(self, model):
        """Stages the weights, so that the optimizer may change them, and writes them in the background."""
        staged = {name: value.detach().clone() for name, value in model.state_dict().items()}  # CULPRIT
        self.saves.append((self.threads.submit(self.write, staged), staged))
        if CURED:
            self.saves[:] = [save for save in self.saves if not save[0].done()]

    @staticmethod
    def write(staged):
        for value in staged.values():
            value.cpu()


def main():
    rank, device = start()
    model = parallel(network(WIDTH), device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    saver = Saver()
    for step in steps(1000, pace_ms=40):
        model(torch.randn(BATCH, WIDTH, device=device)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % SAVE_EVERY == 0:
            saver.save(model.module)
            if step == SAVE_EVERY:
                onset(step)
    for write, _ in saver.saves:
        write.result()
    done()


main()
