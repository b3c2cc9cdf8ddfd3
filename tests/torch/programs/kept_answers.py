"""An inference server puts each answer into a list for its log and never empties it.

There is no optimizer, so there are no steps; the requests are alike, so growth is even.
"""

import torch
from common import CURED, done, network, onset, start, steps

WIDTH, ROWS, KEPT_ROWS, REQUESTS, LOG_MAX = 512, 4096, 512, 1600, 16


class Server:
    def __init__(self, device):
        self.model, self.device = network(WIDTH).to(device).eval(), device
        self.log = []

    def answer(self):
        logits = self.model(torch.randn(ROWS, WIDTH, device=self.device))
        self.log.append(logits[:KEPT_ROWS].clone())  # CULPRIT
        if CURED and len(self.log) == LOG_MAX:
            self.log.clear()
        return logits.argmax(-1)


@torch.no_grad()
def main():
    _, device = start()
    server = Server(device)
    for request in steps(REQUESTS):
        if request == 1:
            onset()
        server.answer()
    done()


main()
