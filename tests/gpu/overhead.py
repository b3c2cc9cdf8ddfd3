"""What Memtape costs a real FSDP2 job in step time, beside PyTorch's own memory history.

    python3 tests/gpu/overhead.py --memtape DIR --switch target/bench/switch.so --ranks 2 [--json]

DIR holds the binary `memtape` and `libmemtape.so`; the switch is what `cargo xtask bench recorder`
builds from tests/bench/switch.c. One job under `memtape run` and torchrun trains two shapes of the
transformer in train.py, one that keeps the GPU busy and one that the host cannot feed fast enough. It
goes through blocks of steps: in each the switch leads PyTorch's report of every block of memory to
Memtape or past it, or PyTorch's own history is on:

    off            nothing records; what Memtape does besides (a thread that sleeps, a hook at each
                   optimizer step, a detour of each cudaMalloc) goes on, here and in all others
    memtape        Memtape as it is by default
    off_again      off again: what the machine's own noise looks like in this run
    torch_python   PyTorch's history, stacks="python", the last 100,000 entries
    torch_all      the same with its default stacks="all"

A round is one block of each, in a new random order for every round, all in the same processes.
The time of a step is what lies between two CUDA events; a block counts with the median of its steps
after warm-up, on the slowest rank. The slowdown is the median over rounds of what a block took beside
the block of `off` of the same round, because a host's speed changes from minute to minute; its 95 %
interval is from drawing whole rounds again. `mean` is all blocks together beside all of `off`, which
rare stalls are in. The goal is met in a shape if Memtape's slowdown is at most 0.5 %, but a run whose
own noise is larger (off_again, or half the width of the interval) decides nothing. Exits 0 if it is met
in all shapes.

Without GPUs, `--backend fake --ranks 1` runs the same on the fake runtime; its times mean nothing.
"""

import argparse
import ctypes
import gc
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
GOAL_PERCENT = 0.5
MODES = ["off", "memtape", "off_again", "torch_python", "torch_all"]
HISTORY_ENTRIES = 100_000
RESAMPLES = 4000
OWN = ("blocks", "steps", "warm-up", "backend")  # options that go on to the ranks
REPORT = "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE"
SHAPES = {
    "gpu_bound": {"features": 2048, "heads": 16, "layers": 8, "batch": 4, "sequence": 1024},
    "host_bound": {"features": 256, "heads": 4, "layers": 16, "batch": 1, "sequence": 128},
}


# --- a rank ------------------------------------------------------------------------------------------


class Recorders:
    """Turns one way of recording on, and all others off."""

    def __init__(self, library):
        import torch

        self.history = torch.cuda.memory._record_memory_history
        self.switch = ctypes.CDLL(None).switch_report
        self.switch.argtypes, self.switch.restype = [ctypes.c_void_p], None
        core = pathlib.Path(torch.__file__).parent / "lib" / "libc10.so"
        self.to_none, self.to_memtape = (
            ctypes.cast(ctypes.CDLL(str(path))[REPORT], ctypes.c_void_p).value for path in (core, library)
        )

    def use(self, mode):
        self.history(None)
        self.switch(self.to_memtape if mode == "memtape" else self.to_none)
        if mode.startswith("torch_"):
            stacks = mode.removeprefix("torch_")
            self.history("all", context="all", stacks=stacks, max_entries=HISTORY_ENTRIES)


def start_group(options):
    import torch
    import torch.distributed as dist

    if options.backend == "fake":
        from torch.testing._internal.distributed.fake_pg import FakeStore

        torch.cuda.set_device(0)
        dist.init_process_group("fake", rank=0, world_size=8, store=FakeStore())
        return torch.device("cuda", 0)
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group(options.backend, device_id=device)
    return device


def make_step(shape, device):
    """A function that trains one step."""
    import torch
    import torch.nn.functional as F
    import train
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    model = train.Transformer(shape["features"], shape["heads"], shape["layers"]).to(device)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    for block in model.blocks:
        fully_shard(block, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    size = (shape["batch"], shape["sequence"] + 1)

    def step():
        tokens = torch.randint(train.VOCABULARY, size, device=device)
        logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def time_block(step, options):
    """Milliseconds of each step after warm-up."""
    import torch

    gc.collect()
    for _ in range(options.warm_up):
        step()
    ends = [torch.cuda.Event(enable_timing=True) for _ in range(options.steps + 1)]
    ends[0].record()
    for end in ends[1:]:
        step()
        end.record()
    torch.cuda.synchronize()
    return [before.elapsed_time(after) for before, after in zip(ends, ends[1:])]


def allocations_of(step):
    import torch

    count = lambda: torch.cuda.memory_stats()["allocation.all.allocated"]  # noqa: E731
    before = count()
    step()
    return count() - before


def measure_shape(shape, recorders, device, options):
    """Mode → one list of step times for each round; and how many allocations a step makes."""
    # What lives from step to step is made while Memtape records, so that its live table is right
    # at the start of every block: a step leaves nothing else behind.
    recorders.use("memtape")
    step = make_step(shape, device)
    for _ in range(5 * options.warm_up):
        step()
    allocations = allocations_of(step)
    found = {mode: [] for mode in MODES}
    chance = random.Random(1)  # the same order on all ranks
    for _ in range(options.blocks):
        for mode in chance.sample(MODES, len(MODES)):
            recorders.use(mode)
            found[mode].append(time_block(step, options))
    recorders.use("memtape")
    return {"times": found, "allocations": allocations}


def rank_main(options):
    import torch.distributed as dist

    device = start_group(options)
    recorders = Recorders(options.memtape / "libmemtape.so")
    gc.disable()  # collected between blocks instead
    found = {}
    for name in options.shapes:
        started = time.monotonic()
        found[name] = measure_shape(SHAPES[name], recorders, device, options)
        if os.environ.get("RANK", "0") == "0":
            print(f"{name}: {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
    path = options.out / f"rank-{os.environ.get('RANK', '0')}.json"
    path.write_text(json.dumps(found))
    dist.destroy_process_group()


# --- figures -----------------------------------------------------------------------------------------


def slowest(ranks, shape, mode, of_block):
    """One number for each block: of the slowest rank."""
    blocks = zip(*(rank[shape]["times"][mode] for rank in ranks))
    return [max(of_block(times) for times in block) for block in blocks]


def slowdown(with_it, without):
    return 100 * (statistics.median(ms / off_ms for ms, off_ms in zip(with_it, without)) - 1)


def mean_slowdown(with_it, without):
    return 100 * (sum(with_it) / sum(without) - 1)


def interval(with_it, without):
    """The middle 95 % of the slowdowns of rounds drawn again, with the same seed every time."""
    chance = random.Random(1)
    rounds = list(zip(with_it, without))
    drawn = sorted(slowdown(*zip(*chance.choices(rounds, k=len(rounds)))) for _ in range(RESAMPLES))
    return drawn[RESAMPLES // 40], drawn[-RESAMPLES // 40]


def figures_of(ranks, options):
    figures = {"ranks": options.ranks, "blocks": options.blocks, "steps": options.steps}
    for shape in options.shapes:
        figures[f"{shape}_allocations"] = ranks[0][shape]["allocations"]
        medians = {mode: slowest(ranks, shape, mode, statistics.median) for mode in MODES}
        means = {mode: slowest(ranks, shape, mode, statistics.mean) for mode in MODES}
        for mode in MODES:
            name = f"{shape}_{mode}"
            middle = statistics.median(medians[mode])
            spread = statistics.median(abs(ms - middle) for ms in medians[mode])
            figures |= {f"{name}_ms": middle, f"{name}_spread_ms": spread}
            if mode != "off":
                low, high = interval(medians[mode], medians["off"])
                figures |= {
                    f"{name}_percent": slowdown(medians[mode], medians["off"]),
                    f"{name}_percent_low": low,
                    f"{name}_percent_high": high,
                    f"{name}_mean_percent": mean_slowdown(means[mode], means["off"]),
                }
    return {name: round(value, 4) for name, value in figures.items()}


def table(figures, options):
    lines = [f"{'':14}{'ms a step':>18}{'slowdown %':>12}{'95 % interval':>20}{'mean %':>9}"]
    for shape in options.shapes:
        allocations = figures[f"{shape}_allocations"]
        lines.append(f"{shape}, {options.ranks} ranks, {allocations} allocations a step")
        for mode in MODES:
            name = f"{shape}_{mode}"
            line = f"  {mode:12}{figures[f'{name}_ms']:10.3f} ± {figures[f'{name}_spread_ms']:5.3f}"
            if mode != "off":
                low, high = figures[f"{name}_percent_low"], figures[f"{name}_percent_high"]
                line += f"{figures[f'{name}_percent']:12.2f}{f'{low:.2f} … {high:.2f}':>20}"
                line += f"{figures[f'{name}_mean_percent']:9.2f}"
            lines.append(line)
    return "\n".join(lines)


def verdict(figures, shape):
    """Whether the goal is met, if the run can tell."""
    low, high = (figures[f"{shape}_memtape_percent_{end}"] for end in ("low", "high"))
    noise = max(abs(figures[f"{shape}_off_again_percent"]), (high - low) / 2)
    is_met = figures[f"{shape}_memtape_percent"] <= GOAL_PERCENT
    if noise > GOAL_PERCENT and low <= GOAL_PERCENT <= high:
        return f"not decided, the noise of this run is {noise:.1f} %"
    return "met" if is_met else "not met"


# --- the job -----------------------------------------------------------------------------------------


def run_job(options, scratch):
    """What each rank measured, and the tapes they left."""
    library = (options.memtape / "libmemtape.so").resolve()
    # `memtape run` puts the library in front of what is preloaded; the switch must be before it.
    others = os.environ.get("LD_PRELOAD", "")
    preload = ":".join(filter(None, [str(options.switch.resolve()), str(library), others]))
    own = [f"--{name}={vars(options)[name.replace('-', '_')]}" for name in OWN]
    command = [
        options.memtape / "memtape", "run", "--dir", options.tapes, "--", "env", f"LD_PRELOAD={preload}",
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", options.ranks,
        HERE / "overhead.py", "--rank", "--out", scratch, "--memtape", library.parent, *own,
        "--shapes", *options.shapes,
    ]  # fmt: skip
    code = subprocess.run([str(part) for part in command]).returncode
    if code:
        sys.exit(f"the job ended with {code}")
    tapes = list(options.tapes.glob("*.tape"))
    if len(tapes) != options.ranks:
        sys.exit(f"{options.ranks} ranks left {len(tapes)} tapes in {options.tapes}: Memtape did not record")
    ranks = [json.loads((scratch / f"rank-{rank}.json").read_text()) for rank in range(options.ranks)]
    return ranks, tapes


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--memtape", type=pathlib.Path, required=True, metavar="DIR")
    parser.add_argument("--switch", type=pathlib.Path, metavar="FILE")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--blocks", type=int, default=40, help="of each mode")
    parser.add_argument("--steps", type=int, default=12, help="measured in a block")
    parser.add_argument("--warm-up", type=int, default=3, metavar="STEPS", help="before them")
    parser.add_argument("--backend", default="nccl")
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--json", action="store_true", help="one JSON object instead of the table")
    parser.add_argument("--rank", action="store_true", help="this is a rank of the job")
    parser.add_argument("--out", type=pathlib.Path, metavar="DIR", help="where a rank leaves its times")
    options = parser.parse_args()
    if options.rank:
        return rank_main(options)

    with (
        tempfile.TemporaryDirectory() as scratch,
        tempfile.TemporaryDirectory(prefix="memtape-overhead-", dir="/dev/shm") as tapes,
    ):
        options.tapes = pathlib.Path(tapes)
        ranks, tapes = run_job(options, pathlib.Path(scratch))
        show = [options.memtape / "memtape", "tape", tapes[0]]
        shown = subprocess.run(show, capture_output=True, text=True)
        print("\n".join(shown.stdout.splitlines()[:24]), file=sys.stderr)
    figures = figures_of(ranks, options)
    verdicts = {shape: verdict(figures, shape) for shape in options.shapes}
    is_good = set(verdicts.values()) == {"met"}
    if options.json:
        print(json.dumps({"command": "gpu overhead", "ok": is_good, "verdicts": verdicts, "figures": figures}))
    else:
        print(table(figures, options))
        for shape, said in verdicts.items():
            print(f"{shape}: Memtape at most {GOAL_PERCENT} %: {said}")
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
