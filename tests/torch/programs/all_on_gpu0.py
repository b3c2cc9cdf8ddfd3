"""Every rank resumes from a checkpoint whose tensors say `cuda:0`, so GPU 0 has to hold it four times.

huggingface/lerobot#4009 (and pytorch/examples#1078, pytorch/pytorch#23138). Rank 0 reads last and finds no room; the
memory it lacks is in the processes of ranks 1 to 3.
"""

import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from common import CURED, done, network, onset, parallel, start, steps

WIDTH, BATCH, RESUME_AT = 256, 128, 60
PARTS, PART_FLOATS = 10, 27 * (1 << 18)  # 270 MiB


def read(checkpoint):
    if CURED:
        return torch.load(checkpoint, weights_only=True, map_location=f"cuda:{os.environ['LOCAL_RANK']}")
    return torch.load(checkpoint, weights_only=True)  # CULPRIT


def main():
    rank, device = start()
    world = dist.get_world_size()
    model = parallel(network(WIDTH, 2), device)
    optimizer = torch.optim.AdamW(model.parameters())
    path = os.path.join(os.environ.get("TMPDIR", "/tmp"), f"resume-{os.environ['TORCHELASTIC_RUN_ID']}.pt")
    if rank == 0:
        torch.save({f"part.{n}": torch.zeros(PART_FLOATS, device=device) for n in range(PARTS)}, path)
        torch.cuda.empty_cache()
    dist.barrier()
    checkpoint = open(path, "rb")
    dist.barrier()
    if rank == 0:
        os.remove(path)  # it stays for who has it open, and ends with the job, however that ends
    state = {}
    for step in steps(300, 25):
        inputs = torch.randn(BATCH, WIDTH, device=device)
        F.mse_loss(model(inputs), inputs).backward()
        optimizer.step()
        optimizer.zero_grad()
        if step == RESUME_AT:
            if rank == 0:
                onset(step)
            for turn in list(range(1, world)) + [0]:
                dist.barrier()
                if turn == rank:
                    state = read(checkpoint)
            state.clear()
    done()


main()
