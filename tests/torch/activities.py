"""Trains 60 steps with a load, saves and evaluations, and keeps a copy of 1 MiB from each save.

It prints the steps after which it began each as JSON. Saves alternate between `torch.save` and
`torch.distributed.checkpoint`.
"""

import io
import json
import pickle
import sys
import tempfile

import torch
import torch.distributed.checkpoint as dcp

STEPS = 60


def main():
    model = torch.nn.Linear(512, 512, device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kept, began = [], {"load": [], "save": [], "evaluation": []}
    folder = tempfile.mkdtemp()
    for step in range(STEPS):
        if step == 3:
            file = io.BytesIO()
            torch.save(model.state_dict(), file)
            file.seek(0)
            began["save"].append(step)
            model.load_state_dict(torch.load(file, map_location="cuda"))
            began["load"].append(step)
        if step % 8 == 7:
            state = {"weight": model.weight.detach().clone()}  # kept
            kept.append(state)
            if step % 16 == 7:
                torch.save(state, io.BytesIO())
            else:
                dcp.save(state, checkpoint_id=f"{folder}/{step}", no_dist=True)
            began["save"].append(step)
        if step % 5 == 2:
            # As `all_gather_object` does; it is no save, and no load.
            pickle.loads(pickle.dumps({"loss": torch.ones(4)}))
        if step % 20 == 10:
            model.eval()
            with torch.no_grad():
                model(torch.ones(4, 512, device="cuda"))
            model.train()
            began["evaluation"].append(step)
        model(torch.ones(4, 512, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    print(json.dumps({"has_monitoring": sys.version_info >= (3, 12), **began}), flush=True)


main()
