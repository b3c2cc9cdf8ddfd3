"""An inference engine shares the device of each trainer: it wakes for a rollout, and sleeps while there is training.

huggingface/trl#3968 and #4296, vllm-project/vllm#22310: in a process of its own the engine takes its weights and its
cache at each wake, and gives both back. Outside of PyTorch's allocator of the rank it looks like growth, again
and again. None of it is.
"""

import multiprocessing

import torch
from common import MIB, done, network, parallel, start, steps

PROMPTS, WIDTH, UPDATES, ITERATIONS, CACHE_MIB = 512, 512, 12, 70, 900


def serve(requests, answers, index):
    """The engine. Its cache is larger for longer prompts."""
    device = torch.device("cuda", index)
    with torch.no_grad():
        for length in iter(requests.get, None):
            weights = network(WIDTH, layers=8).to(device)
            cache = torch.empty(CACHE_MIB * MIB // 1024, length, device=device, dtype=torch.uint8)
            weights(torch.randn(PROMPTS, WIDTH, device=device))
            del weights, cache
            torch.cuda.empty_cache()  # sleep
            answers.put(length)


def main():
    rank, device = start()
    policy = parallel(network(WIDTH), device)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-6)
    spawn = multiprocessing.get_context("spawn")
    requests, answers = spawn.SimpleQueue(), spawn.SimpleQueue()
    engine = spawn.Process(target=serve, args=(requests, answers, device.index), daemon=True)
    engine.start()
    for iteration in steps(ITERATIONS, pace_ms=500):
        requests.put(1024 + 8 * (iteration * 37 % 64))
        answers.get()
        for _ in steps(UPDATES, pace_ms=25):
            policy(torch.randn(PROMPTS, WIDTH, device=device)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    requests.put(None)
    engine.join()
    done()


if __name__ == "__main__":
    main()
