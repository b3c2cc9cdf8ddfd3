"""Records the store of a real job of four ranks, of which one leaks, for the tests of the page.

    python3 tests/gpu/store.py --memtape DIR --out FOLDER [--steps 300]

DIR holds the binary `memtape` and `libmemtape.so`. Starts a coordinator and an agent, and trains a small model
with DDP on all GPUs, with several ranks on one where there are fewer. Rank 2 keeps a tensor of each step from
step 80 on. Waits for its incident with a line, asks for a capture of all ranks, and writes a backup of the
store into FOLDER/h200.backup. Needs only torch and Python's standard library.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import urllib.request

from services import Services, start, wait_for

HERE = pathlib.Path(__file__).resolve()
RANKS, LEAKING, ONSET = 4, 2, 80
PATIENCE_S = 120


def train(options):
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    rank, gpus = int(os.environ["RANK"]), torch.cuda.device_count()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % gpus)
    # NCCL takes no two ranks on one GPU.
    dist.init_process_group("nccl" if gpus >= RANKS else "gloo")
    layers = [torch.nn.Sequential(torch.nn.Linear(1024, 1024), torch.nn.GELU()) for _ in range(6)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers).cuda())
    optimizer = torch.optim.AdamW(model.parameters())
    kept = []
    for step in range(1, options.steps + 1):
        begun = time.monotonic()
        loss = model(torch.randn(256, 1024, device="cuda")).square().mean()
        if rank == LEAKING and step >= ONSET:
            kept.append(loss + torch.zeros(2 << 20, device="cuda"))  # the line that leaks
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(max(0, 0.1 - (time.monotonic() - begun)))
    dist.destroy_process_group()


def record(options):
    options.out.mkdir(parents=True, exist_ok=True)
    memtape = options.memtape / "memtape"
    with tempfile.TemporaryDirectory(prefix="memtape-store-", dir="/dev/shm") as tapes:
        services = Services(memtape, options.out, tapes)
        try:
            job = start([memtape, "run", "--job", "h200", "--dir", tapes, "--", sys.executable, "-m",
                         "torch.distributed.run", "--standalone", "--nproc-per-node", RANKS, HERE,
                         "--steps", options.steps, "--memtape", options.memtape, "--out", options.out,
                         "--train"], options.out / "job.log")  # fmt: skip
            named = wait_for(
                lambda: next((each for each in services.incidents("h200") if each["culprit"]), None), PATIENCE_S
            )
            asked = urllib.request.Request(f"http://127.0.0.1:{services.port}/api/v1/jobs/h200/captures", b"{}")
            capture = json.load(urllib.request.urlopen(asked, timeout=30))["id"]
            wait_for(lambda: services.get(f"/captures/{capture}")["state"] != "collecting", PATIENCE_S)
            code = job.wait()
            wait_for(lambda: services.is_over("h200"), PATIENCE_S)
            print(json.dumps(services.get(f"/captures/{capture}"))[:600])
            backup = [memtape, "store", "backup", options.out / "h200.backup"]
            address = f"http://127.0.0.1:{services.port}"
            subprocess.run([*map(str, backup), "--coordinator", address], check=True)
        finally:
            services.end()
    print(named and named["sentence"], named and named["culprit"], "exit code", code)
    sys.exit(not named or code)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--memtape", type=pathlib.Path, required=True, metavar="DIR")
    parser.add_argument("--out", type=pathlib.Path, required=True, metavar="FOLDER")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--train", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    (train if options.train else record)(options)


if __name__ == "__main__":
    main()
