"""A tool call that fails is tried again, and the last error is remembered in the function that raises it in the end.

pytorch/pytorch#182980 and apache/tvm-ffi#327: an exception in a variable of the frame that it came through is a
cycle, with every tensor of that frame in it. Collection by itself is off, as it is in most large trainers, and
one by hand is hundreds of steps away.
"""

import gc

import torch
from common import CURED, done, network, onset, parallel, start, steps

ANSWERS, WIDTH, TRIES, COLLECT_EVERY = 1024, 512, 3, 300


def call(tool, is_last):
    if not is_last:
        raise TimeoutError(f"{tool} took too long")
    return 1.0


def episode(policy, device):
    """The answers of the policy, weighted by what a tool says about them; mostly its third answer counts."""
    answers = torch.randn(ANSWERS, WIDTH, device=device)  # CULPRIT
    error = None
    for number in range(TRIES):
        try:
            return policy(answers) * call("python", number == TRIES - 1)
        except TimeoutError as failed:
            error = failed.with_traceback(None) if CURED else failed
    raise error


def main():
    rank, device = start()
    policy = parallel(network(WIDTH, layers=2), device)
    optimizer = torch.optim.SGD(policy.parameters(), lr=1e-3)
    gc.disable()
    # Two captures are a minute apart, and the first comes before anything is collected.
    for step in steps(2000, pace_ms=40):
        if step == 1:
            onset(step)
        episode(policy, device).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % COLLECT_EVERY == 0:
            gc.collect()
    done()


main()
