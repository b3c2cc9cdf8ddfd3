"""A rank starts a process that evaluates its checkpoints on the same device, and that process keeps its predictions.

pytorch/pytorch#150798 and Lightning-AI/pytorch-lightning#8453 in one: the memory is on the device of a rank, and is
none of the rank's own. The rank's process is as it was, and so are its peers.
"""

import multiprocessing

import torch
from common import CURED, done, network, onset, parallel, start, steps

BATCH, WIDTH, EVALUATE_EVERY, EVALUATING_RANK, SAMPLES = 256, 512, 10, 1, 2048


def evaluate(requests, index):
    """Runs in a process of its own, for as long as the training."""
    device = torch.device("cuda", index)
    model, predictions = network(WIDTH).to(device), []
    with torch.no_grad():
        for state in iter(requests.get, None):
            model.load_state_dict({name: torch.from_numpy(value) for name, value in state.items()})
            predictions.append(model(torch.randn(SAMPLES, WIDTH, device=device)))  # CULPRIT
            if CURED:
                predictions[-1] = predictions[-1].mean().item()


def main():
    rank, device = start()
    model = parallel(network(WIDTH), device)
    optimizer = torch.optim.AdamW(model.parameters())
    requests, evaluator = None, None
    if rank == EVALUATING_RANK:
        spawn = multiprocessing.get_context("spawn")
        requests = spawn.SimpleQueue()
        evaluator = spawn.Process(target=evaluate, args=(requests, device.index), daemon=True)
        evaluator.start()
    for step in steps(1400, pace_ms=40):
        model(torch.randn(BATCH, WIDTH, device=device)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if requests and step % EVALUATE_EVERY == 0:
            state = model.module.state_dict()
            requests.put({name: value.detach().cpu().numpy() for name, value in state.items()})
            if step == EVALUATE_EVERY:
                onset(step)
    if requests:
        requests.put(None)
        evaluator.join()
    done()


if __name__ == "__main__":
    main()
