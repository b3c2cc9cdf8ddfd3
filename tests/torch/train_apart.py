"""A small DDP job whose ranks outlive each other: when a collective fails, a rank keeps what it has and
waits, as ranks of a real job do while their watchdog has not spoken yet.

    RANK=0 WORLD_SIZE=4 LOCAL_RANK=0 MASTER_ADDR=10.9.1.2 MASTER_PORT=29500 GLOO_SOCKET_IFNAME=eth0 \\
        tests/fake_cuda/run -n 2 -- python tests/torch/train_apart.py
"""

import datetime
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

FEATURES, BATCH = 256, 64
STEP_S = 0.05


def train(device):
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(FEATURES, FEATURES), nn.ReLU(), nn.Linear(FEATURES, FEATURES)).to(device),
        device_ids=[device.index],
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    step = 0
    while True:
        started = time.monotonic()
        model(torch.ones(BATCH, FEATURES, device=device)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        if step % 20 == 0:
            print(f"step {step}", flush=True)
        time.sleep(max(0.0, STEP_S - (time.monotonic() - started)))


def main():
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=30))
    print("joined", flush=True)
    try:
        train(device)
    except RuntimeError as error:
        print(f"a collective failed: {error}", flush=True)
        while True:
            time.sleep(1)


if __name__ == "__main__":
    main()
