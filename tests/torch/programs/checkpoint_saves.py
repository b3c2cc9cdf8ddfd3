"""A checkpoint every seventy steps: rank 0 gathers the state of all, and moves it to the host.

pytorch/pytorch#103884 and #137151: saving raises the reserved memory of rank 0 by gigabytes, and it stays
reserved. Its peers do nothing of the kind. None of it is a leak.
"""

import io

import torch
from common import done, network, parallel, start, steps

BATCH, WIDTH, SAVE_EVERY = 256, 1024, 70


def save(model, optimizer, world):
    """As a gathered save does: whole tensors first, then their copies on the host."""
    state = {name: value.detach() for name, value in model.module.state_dict().items()}
    for number, entry in enumerate(optimizer.state.values()):
        state |= {f"{number}.{name}": value for name, value in entry.items()}
    gathered = {name: torch.cat([value.reshape(-1)] * world) for name, value in state.items()}
    on_host = {name: value.cpu() for name, value in gathered.items()}
    torch.save({name: value[:16].clone() for name, value in on_host.items()}, io.BytesIO())


def main():
    rank, device = start()
    model = parallel(network(WIDTH), device)
    optimizer = torch.optim.AdamW(model.parameters())
    for step in steps(450):
        model(torch.randn(BATCH, WIDTH, device=device)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0 and step % SAVE_EVERY == 0:
            save(model, optimizer, world=4)
    done()


main()
