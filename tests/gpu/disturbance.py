"""Whether captures disturb training: step times with captures, back to back, beside those without any.

    python3 tests/gpu/disturbance.py --memtape DIR --ranks 2 [--backend nccl] [--json]

DIR holds the binary `memtape` and `libmemtape.so`. Starts a coordinator and an agent, and a DDP job under
`memtape run`. The job trains in rounds of four blocks of steps, in an order rotated by one each round:

    without    no capture is taken
    captures   this script asks for one, waits until its manifest is closed, asks for the next …
    again      as `without`: what the same block differs from itself is the noise
    busy       no captures, but one process that computes something else all the time, beside the services:
               what any other work on this machine costs the job

A block begins with steps that do not count. Ranks and this script agree on its beginning and its end, so
that no capture reaches into another block. The time of a step is taken in the training process, with the
GPU synchronized. A round gives one difference of medians, and one of means, for `captures` and for the
two behind it, each in percent of `without`; the figures are the median and the mean over the rounds, with
a bootstrap interval of 95 %. `cpu` is the CPU time of a rank's process for a step: it shows work that a
capture gives to the process, also on a machine that has too much to do for times to say anything.

On the fake runtime, `cargo xtask bench disturbance` runs it with one rank and --backend gloo. The "GPU" is
a core then, which other processes of a real node could not use: with --apart the job has the first core for
itself, before all other processes where we may say so (root), and the services, of which a real node has
the agent alone, share the others.
"""

import argparse
import json
import os
import pathlib
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

HERE = pathlib.Path(__file__).resolve()
MODES = ("without", "captures", "again", "busy")
KINDS = ("median", "mean", "cpu")
JOB = "disturbed"
PATIENCE_S = 120
POLL_S = 0.01  # between two looks at a manifest; each is a request, and costs what requests cost
BOOTSTRAPS = 4000


# --- a rank ---------------------------------------------------------------------------------------------


class Referee:
    """The other end of rank 0's line to this script; the other ranks wait for rank 0."""

    def __init__(self, port, rank, dist):
        self.dist = dist
        self.line = None
        if rank == 0:
            self.line = socket.create_connection(("127.0.0.1", port)).makefile("rw")

    def tell(self, text):
        if self.line:
            self.line.write(text + "\n")
            self.line.flush()
            self.line.readline()
        self.dist.barrier()


def train(options):
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group(options.backend)
    layers = [nn.Sequential(nn.Linear(options.width, options.width), nn.GELU()) for _ in range(8)]
    model = DistributedDataParallel(nn.Sequential(*layers).to(device), device_ids=[device.index])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    batch = torch.ones(options.batch, options.width, device=device)
    # Blocks that live for the whole job, as parameters, optimizer and caches of a real one do.
    kept = [torch.empty(128, device=device) for _ in range(options.live_blocks)]

    def step():
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()

    for _ in range(30):
        step()
    referee = Referee(options.port, dist.get_rank(), dist)
    for turn in range(options.rounds):
        for place in range(len(MODES)):
            mode = MODES[(turn + place) % len(MODES)]
            referee.tell(f"begin {mode}")
            for _ in range(options.warm_up):
                step()
            times, cpu = [], time.process_time_ns()
            for _ in range(options.steps):
                begin = time.perf_counter_ns()
                step()
                times.append((time.perf_counter_ns() - begin) / 1e6)
            cpu = (time.process_time_ns() - cpu) / 1e6 / options.steps
            referee.tell(f"end {mode} {json.dumps([times, cpu])}")
    del kept
    referee.tell("over")
    dist.destroy_process_group()


def on_cores(cores, is_job=False):
    """What a child does first to stay on these; nothing for none."""

    def stay():
        os.sched_setaffinity(0, cores)
        if is_job:
            try:
                os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
            except PermissionError:
                pass  # others may come in between, which the figures then show

    return stay if cores else None


# --- the services ---------------------------------------------------------------------------------------


class Services:
    def __init__(self, memtape, scratch, others):
        self.scratch = scratch
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.url = f"http://127.0.0.1:{probe.getsockname()[1]}"
        self.tapes = tempfile.mkdtemp(prefix="memtape-disturbance-", dir="/dev/shm")
        log = open(scratch / "services.log", "w")
        start = lambda *words: subprocess.Popen(  # noqa: E731
            [str(word) for word in (memtape, *words)], stdout=log, stderr=log, preexec_fn=on_cores(others)
        )
        listen = self.url.removeprefix("http://")
        coordinator = start("coordinator", "--listen", listen, "--data-dir", scratch / "data")
        agent = start("agent", "--node", "here", "--coordinator", self.url, "--tape-dir", self.tapes)
        self.processes = [coordinator, agent]

    def ask(self, path, body=None):
        request = urllib.request.Request(f"{self.url}/api/v1{path}", data=body)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    def wait_for_job(self, ranks):
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            try:
                jobs = self.ask("/jobs")["jobs"]
                if jobs and jobs[0]["ranks_alive"] == ranks and jobs[0]["step_min"] >= 20:
                    return
            except OSError:
                pass
            time.sleep(0.2)
        sys.exit("the job is not there in time")

    def capture(self):
        """One capture; its manifest."""
        begin = time.monotonic()
        name = self.ask(f"/jobs/{JOB}/captures", b"{}")["id"]
        while True:
            manifest = self.ask(f"/captures/{name}")
            if manifest["closed_wall_ns"]:
                return manifest | {"took_ms": (time.monotonic() - begin) * 1e3}
            time.sleep(POLL_S)

    def stop(self):
        for process in self.processes:
            process.kill()
            process.wait()
        subprocess.run(["rm", "-rf", self.tapes], check=False)


def referee(line, services, ranks):
    """Step times and CPU time of all blocks by mode, and the manifests of all captures."""
    blocks, cpu, manifests = {mode: [] for mode in MODES}, {mode: [] for mode in MODES}, []
    stop, worker = threading.Event(), None

    def work():
        while not stop.is_set():
            manifests.append(services.capture())

    def compute():
        with subprocess.Popen([sys.executable, "-c", "while True: sum(range(1000))"]) as process:
            stop.wait()
            process.kill()

    works = {"captures": work, "busy": compute}
    for said in line:
        words = said.split(" ", 2)
        if words[0] == "begin" and words[1].strip() in works:
            services.wait_for_job(ranks)
            stop.clear()
            worker = threading.Thread(target=works[words[1].strip()])
            worker.start()
        elif words[0] == "end":
            stop.set()
            if worker:
                worker.join()
                worker = None
            times, cpu_ms = json.loads(words[2])
            blocks[words[1]].append(times)
            cpu[words[1]].append([cpu_ms])
        line.write("go on\n")
        line.flush()
        if words[0].strip() == "over":
            break
    return blocks, cpu, manifests


# --- figures --------------------------------------------------------------------------------------------


def interval(values, of, seed=7):
    """The statistic, and its bootstrap interval of 95 %."""
    generator = random.Random(seed)
    drawn = sorted(of(generator.choices(values, k=len(values))) for _ in range(BOOTSTRAPS))
    return of(values), drawn[int(BOOTSTRAPS * 0.025)], drawn[int(BOOTSTRAPS * 0.975)]


def compare(blocks, mode, of):
    """Difference of each round from `without`, in percent."""
    pairs = zip(blocks[mode], blocks["without"])
    return [(of(one) / of(other) - 1) * 100 for one, other in pairs]


def figures(blocks, cpu, manifests):
    all_steps = {mode: sorted(sum(blocks[mode], [])) for mode in MODES}
    found = {
        "captures": len(manifests),
        "captures_aligned": sum(m["aligned"] == m["ranks"] for m in manifests),
        "capture_p50_ms": statistics.median(m["took_ms"] for m in manifests) if manifests else None,
        "rounds": len(blocks["without"]),
        "steps_of_each": len(all_steps["without"]),
    }
    for mode, steps in all_steps.items():
        found[f"{mode}_step_median_ms"] = statistics.median(steps)
        found[f"{mode}_step_mean_ms"] = statistics.fmean(steps)
        found[f"{mode}_step_p99_ms"] = steps[int(len(steps) * 0.99)]
    for mode in MODES[1:]:
        for name, of, what in (
            ("median", statistics.median, blocks),
            ("mean", statistics.fmean, blocks),
            ("cpu", statistics.median, cpu),
        ):
            value, low, high = interval(compare(what, mode, of), of)
            key = f"{mode}_{name}_percent"
            found |= {key: value, f"{key}_low": low, f"{key}_high": high}
    return found


def is_noise(found, name):
    """The interval holds nothing, or what the same block differs from itself by."""
    low, control = found[f"captures_{name}_percent_low"], found[f"again_{name}_percent_high"]
    return low <= max(0.0, control)


def text(found):
    lines = [f"{found['captures']} captures ({found['captures_aligned']} of them aligned on all ranks)"]
    lines[0] += f", p50 {found['capture_p50_ms']:.0f} ms, back to back"
    lines.append(f"{'a step, ms':12}{'median':>10}{'mean':>10}{'p99':>10}")
    for mode in MODES:
        cells = [found[f"{mode}_step_{name}_ms"] for name in ("median", "mean", "p99")]
        lines.append(f"{mode:12}" + "".join(f"{cell:10.3f}" for cell in cells))
    for mode in MODES[1:]:
        for name in KINDS:
            key = f"{mode}_{name}_percent"
            low, high = found[f"{key}_low"], found[f"{key}_high"]
            said = f"{found[key]:+.2f} % [{low:+.2f}, {high:+.2f}]"
            lines.append(f"{mode:12}{name:8}{said:>28} of without, {found['rounds']} rounds")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--memtape", type=pathlib.Path, help="folder of memtape and libmemtape.so")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--backend", default="nccl")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--steps", type=int, default=60, help="measured in a block")
    parser.add_argument("--warm-up", type=int, default=5, help="steps of a block that do not count")
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--live-blocks", type=int, default=5_000)
    parser.add_argument("--apart", action="store_true", help="the job has the first core for itself")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.port:
        return train(options)

    with tempfile.TemporaryDirectory(prefix="memtape-disturbance-") as scratch:
        scratch = pathlib.Path(scratch)
        memtape = options.memtape.resolve() / "memtape"
        first, *rest = sorted(os.sched_getaffinity(0))
        if options.apart and not rest:
            sys.exit("--apart needs two cores")
        own_cores, others = ({first}, set(rest)) if options.apart else (None, None)
        os.sched_setaffinity(0, others or os.sched_getaffinity(0))
        services = Services(memtape, scratch, others)
        try:
            with socket.create_server(("127.0.0.1", 0)) as server:
                server.settimeout(PATIENCE_S)
                own = []
                for name in ("ranks", "backend", "rounds", "steps", "warm-up", "width", "batch", "live-blocks"):
                    own += [f"--{name}", str(getattr(options, name.replace("-", "_")))]
                command = [
                    memtape, "run", "--job", JOB, "--dir", services.tapes, "--",
                    sys.executable, "-m", "torch.distributed.run", "--standalone",
                    "--nproc-per-node", str(options.ranks), HERE, *own,
                    "--port", str(server.getsockname()[1]),
                ]  # fmt: skip
                log = open(scratch / "job.log", "w")
                command = [str(word) for word in command]
                job = subprocess.Popen(command, stdout=log, stderr=log, preexec_fn=on_cores(own_cores, True))
                try:
                    line = server.accept()[0].makefile("rw")
                    blocks, cpu, manifests = referee(line, services, options.ranks)
                finally:
                    job.kill()
                    job.wait()
        except Exception:
            sys.stderr.write((scratch / "job.log").read_text()[-4000:])
            raise
        finally:
            services.stop()
    found = figures(blocks, cpu, manifests)
    is_good = all(is_noise(found, name) for name in KINDS)
    is_good = is_good and found["captures"] >= 50 and found["captures_aligned"] == found["captures"]
    if options.json:
        print(json.dumps({"command": "bench disturbance", "ok": is_good, "figures": found}))
    else:
        print(text(found))
        print("no difference beyond noise" if is_good else "NOT SHOWN: see above")
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
