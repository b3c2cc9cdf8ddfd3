"""Saves, loads and evaluations of PyTorch, Lightning and the Trainer of transformers: the marks on their tapes.

    python3 tests/gpu/activities.py --memtape DIR

DIR holds the binary `memtape` and `libmemtape.so`. Runs this file once for each framework under the recorder,
and once a compiled model that calls `eval()` in its forward pass, which must compile as a whole as it does
without the recorder. Prints one table; exits 1 if a mark is missing or one is too many. Needs one GPU, CPython
3.12 or later, torch, lightning and transformers.
"""

import argparse
import collections
import json
import os
import pathlib
import subprocess
import sys
import tempfile

STEPS = 40
# Steps after which each activity begins.
EXPECTED = {
    "plain": {"save": [0, 9, 19, 29, 39], "load": [0], "evaluation": [19, 39]},
    "compiled": {"evaluation": [3]},  # what is compiled no longer calls `eval()`
    "lightning": {"save": [20, 40], "evaluation": [20, 40]},
    "trainer": {"save": [20, 40], "evaluation": [20, 40]},
}


def plain(folder):
    import torch

    model = torch.nn.Linear(64, 64, device="cuda")
    optimizer = torch.optim.AdamW(model.parameters())
    path = os.path.join(folder, "model.pt")
    torch.save(model.state_dict(), path)
    model.load_state_dict(torch.load(path))
    for step in range(STEPS):
        if step % 10 == 9:
            torch.save(model.state_dict(), path)
        if step % 20 == 19:
            model.eval()
            model.train()
        model(torch.ones(8, 64, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def compiled(_):
    import torch

    class Frozen(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.part = torch.nn.Linear(64, 64)

        def forward(self, batch):
            self.part.eval()
            return self.part(batch)

    model = Frozen().cuda()
    run = torch.compile(model, fullgraph=True)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        run(torch.ones(8, 64, device="cuda")).sum().backward()
        optimizer.step()
    model.eval()


def lightning(folder):
    import lightning
    import torch
    from lightning.pytorch.callbacks import ModelCheckpoint

    class Task(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = torch.nn.Linear(64, 64)

        def training_step(self, batch, index):
            return self.model(batch).square().mean()

        def validation_step(self, batch, index):
            self.model(batch)

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters())

    batches = torch.utils.data.DataLoader(torch.randn(20 * 8, 64), batch_size=8)
    trainer = lightning.Trainer(
        accelerator="gpu", devices=1, max_epochs=2, num_sanity_val_steps=0, logger=False, enable_progress_bar=False,
        callbacks=[ModelCheckpoint(folder, save_top_k=-1)],
    )  # fmt: skip
    trainer.fit(Task(), batches, batches)


def trainer(folder):
    import torch
    from transformers import Trainer, TrainingArguments

    class Task(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = torch.nn.Linear(64, 64)

        def forward(self, inputs, labels=None):
            outputs = self.model(inputs)
            return {"loss": outputs.square().mean(), "logits": outputs}

    rows = [{"inputs": torch.randn(64), "labels": 0} for _ in range(20 * 8)]
    arguments = TrainingArguments(
        output_dir=folder, per_device_train_batch_size=8, per_device_eval_batch_size=8, num_train_epochs=2,
        save_strategy="epoch", eval_strategy="epoch", report_to=[], disable_tqdm=True, logging_strategy="no",
    )  # fmt: skip
    Trainer(model=Task(), args=arguments, train_dataset=rows, eval_dataset=rows).train()


def marks(memtape, tape):
    said = subprocess.run([memtape / "memtape", "tape", tape, "--json", "--last", "100"], check=True,
                          capture_output=True, text=True).stdout  # fmt: skip
    found = collections.defaultdict(list)
    for mark in json.loads(said)["marks"]:
        if mark["text"].startswith("activity="):
            found[mark["text"].removeprefix("activity=")].append(mark["step"])
    return dict(found)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--memtape", type=pathlib.Path, required=True, metavar="DIR")
    memtape = parser.parse_args().memtape.resolve()
    is_good = True
    for name, expected in EXPECTED.items():
        folder = pathlib.Path(tempfile.mkdtemp(prefix="memtape-activities-"))
        (folder / "tapes").mkdir()
        preloaded = filter(None, [str(memtape / "libmemtape.so"), os.environ.get("LD_PRELOAD")])
        environment = {**os.environ, "LD_PRELOAD": ":".join(preloaded), "MEMTAPE_DIR": str(folder / "tapes"),
                       "CUDA_VISIBLE_DEVICES": "0"}  # fmt: skip
        run = subprocess.run([sys.executable, __file__, "--program", name, folder], env=environment,
                             capture_output=True, text=True)  # fmt: skip
        tapes = list((folder / "tapes").glob("*.tape"))
        found = marks(memtape, tapes[0]) if len(tapes) == 1 else f"{len(tapes)} tapes"
        is_right = run.returncode == 0 and found == expected
        is_good &= is_right
        print(f"{name:10} {json.dumps(found)}{'' if is_right else f' <-- expected {json.dumps(expected)}'}", flush=True)
        if run.returncode:
            print(run.stderr[-2000:])
    sys.exit(not is_good)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--program"]:
        globals()[sys.argv[2]](sys.argv[3])
    else:
        main()
