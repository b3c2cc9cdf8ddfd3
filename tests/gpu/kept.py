"""What a range of steps kept, beside PyTorch's own snapshots at the two ends of the range.

    python3 tests/gpu/kept.py --memtape DIR [--steps 60] [--from 21] [--to 45]

DIR holds the binary `memtape` and `libmemtape.so`. One rank trains a small model that keeps tensors at two
lines, frees some of them later, and records PyTorch's memory history. At the end of the step before the range
and of its last one it takes PyTorch's snapshot: the blocks that are alive at the end and were allocated after
the beginning, by line. Then a capture at the end of the last step is asked for, and what the coordinator says
was kept of the range. Prints one table, exits 1 if a line or a byte differs. PyTorch has no line for what
autograd's own threads allocate, Memtape has the forward line: those bytes may stand at any line, and must be
as many. Needs only torch and Python's standard library.
"""

import argparse
import collections
import json
import os
import pathlib
import sys
import tempfile
import time
import urllib.request

from services import Services, end, start, wait_for

HERE = pathlib.Path(__file__).resolve()

# Until a capture is complete, and until a job is known.
PATIENCE_S = 60


def train(options):
    """The rank: trains, and writes what PyTorch says of the range into a file."""
    import torch

    torch.cuda.memory._record_memory_history(max_entries=1_000_000, stacks="python")
    model = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(4)]).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    kept, passing = [], collections.deque()
    # Step 1 also has what is older.
    begun = 0
    for step in range(1, options.steps + 1):
        loss = model(torch.randn(64, 512, device="cuda")).square().mean()
        kept.append(torch.empty(1000 + 37 * step, device="cuda"))
        passing.append(torch.empty(3 << 20, dtype=torch.uint8, device="cuda"))
        if len(passing) > 10:
            passing.popleft()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        # No tensor is allocated between the end of a step and here.
        if step == options.first - 1:
            begun = len(torch.cuda.memory._snapshot()["device_traces"][0])
        if step == options.last:
            lines = lines_kept(torch.cuda.memory._snapshot(), begun)
            options.out.write_text(json.dumps(lines))
    # The tape is read while its process lives.
    time.sleep(2 * PATIENCE_S)


def lines_kept(snapshot, begun):
    """Bytes and blocks by line: alive in the snapshot, and allocated after the event `begun`."""
    allocated = {}
    for number, event in enumerate(snapshot["device_traces"][0]):
        if event["action"] == "alloc":
            allocated[event["addr"]] = (number, event["frames"])
    lines = collections.defaultdict(lambda: [0, 0])
    for segment in snapshot["segments"]:
        for block in segment["blocks"]:
            number, frames = allocated.get(block["address"], (-1, []))
            if block["state"] != "active_allocated" or number < begun:
                continue
            own = next((frame for frame in frames if frame["filename"].endswith("kept.py")), None)
            line = lines[own["line"] if own else 0]
            line[0] += block["size"]
            line[1] += 1
    return lines


def ask(services, path, body=None):
    url = f"http://127.0.0.1:{services.port}/api/v1{path}"
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.load(answer)


def lines_said(services, options):
    """The same from the coordinator."""
    job = wait_for(lambda: next((each["job"] for each in services.asked("/jobs", {"jobs": []})["jobs"]
                                 if each["step_max"] >= options.steps), None), PATIENCE_S)  # fmt: skip
    capture = ask(services, f"/jobs/{job}/captures", {"step": options.last})["id"]
    wait_for(lambda: services.get(f"/captures/{capture}")["state"] == "complete", PATIENCE_S)
    query = f"rank=0&from={options.first}&to={options.last}"
    kept = services.get(f"/captures/{capture}/kept?{query}")
    print(json.dumps({key: value for key, value in kept.items() if key not in ("frames", "stacks", "lines")}))
    lines = {}
    for line in kept["lines"]:
        number = line["frame"]["line"] if line["frame"]["file"].endswith("kept.py") else 0
        known = lines.get(number, [0, 0])
        lines[number] = [known[0] + line["bytes"], known[1] + line["blocks"]]
    return lines, kept


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--memtape", type=pathlib.Path, metavar="DIR")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--from", type=int, default=21, dest="first")
    parser.add_argument("--to", type=int, default=45, dest="last")
    parser.add_argument("--out", type=pathlib.Path, help="the rank's own file: without --memtape")
    options = parser.parse_args()
    if not options.memtape:
        return train(options)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="memtape-kept-"))
    theirs = folder / "torch.json"
    with tempfile.TemporaryDirectory(prefix="memtape-kept-", dir="/dev/shm") as tapes:
        services = Services(options.memtape / "memtape", folder, tapes)
        job = start([options.memtape / "memtape", "run", "--job", "kept", "--dir", tapes, "--", sys.executable,
                     HERE, "--steps", options.steps, "--from", options.first, "--to", options.last,
                     "--out", theirs], folder / "train.log")  # fmt: skip
        try:
            if not wait_for(theirs.exists, 2 * PATIENCE_S):
                sys.exit((folder / "train.log").read_text())
            said, kept = lines_said(services, options)
        finally:
            end(job)
            services.end()
    expected = {int(line): amounts for line, amounts in json.loads(theirs.read_text()).items()}
    sys.exit(not is_same(expected, said, kept))


def is_same(expected, said, kept):
    """Prints both, and compares them."""
    nameless = expected.pop(0, [0, 0])
    source = HERE.read_text().splitlines()
    more = [0, 0]
    print(f"{'line':>5} {'PyTorch':>22} {'Memtape':>22}")
    for line in sorted(expected | said):
        here, there = expected.get(line, [0, 0]), said.get(line, [0, 0])
        more = [known + of - other for known, of, other in zip(more, there, here)]
        note = "" if here == there else f"  {there[0] - here[0]} bytes more"
        print(f"{line:>5} {here[0]:>14} {here[1]:>7} {there[0]:>14} {there[1]:>7}  {source[line - 1].strip()}{note}")
    total = [sum(amounts[place] for amounts in expected.values()) + nameless[place] for place in (0, 1)]
    print(f"{'none':>5} {nameless[0]:>14} {nameless[1]:>7}")
    print(f"{'all':>5} {total[0]:>14} {total[1]:>7} {kept['bytes']:>14} {kept['blocks']:>7}")
    lacks = any(said.get(line, [0, 0])[0] < amounts[0] for line, amounts in expected.items())
    return not lacks and more == nameless and total == [kept["bytes"], kept["blocks"]]


if __name__ == "__main__":
    main()
