"""A rank of a real NCCL job that leaves a collective out, while its peers wait for it for ever.

    python3 tests/gpu/collective.py --memtape DIR --ranks 2

DIR holds the binary `memtape` and `libmemtape.so`. Starts a coordinator and an agent, and runs itself
under `memtape run` twice: with a rank that skips an all_reduce, which a capture must name; and without,
where no rank may be named, a rank that keeps the GIL is looked at all the same, and each tape says what
PyTorch's own dump says. Prints one table of what was expected and what was found; exits 1 if anything
differs. Needs two GPUs or more; takes about a minute, and ends within two whatever NCCL does.
"""

import argparse
import ctypes
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request

PORT = 7772
SECONDS_MAX = 115  # everything is killed then
SKIPS_AT_STEP = 60
GIL_SECONDS = 8
started = []


def job(way):
    """One rank: steps with an all_reduce each; then it hangs, or says how far it has come."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # dies with its launcher
    import torch
    import torch.distributed as dist
    from torch._C._distributed_c10d import _dump_nccl_trace_json

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    model = torch.nn.Linear(1024, 1024, device=device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(1, 2 * SKIPS_AT_STEP):
        model(torch.randn(64, 1024, device=device)).square().mean().backward()
        if way == "skips" and step == SKIPS_AT_STEP and rank == last:
            os.write(1, b"skips\n")
            time.sleep(600)
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()  # the peers hang here
        time.sleep(0.05)
    time.sleep(1)  # PyTorch's watchdog sees what is over
    begun = time.time_ns()
    ctypes.PyDLL(None).usleep(GIL_SECONDS * 1_000_000)  # keeps the GIL
    said = {"rank": rank, "begun": begun, "ended": time.time_ns()}
    said["dump"] = json.loads(_dump_nccl_trace_json(includeCollectives=False))
    os.write(1, f"expected {json.dumps(said)}\n".encode())
    dist.destroy_process_group()


def get(path):
    with urllib.request.urlopen(f"http://127.0.0.1:{PORT}{path}", timeout=10) as answer:
        return json.load(answer)


def wait_for(what, ask, patience_s=60):
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        try:
            answer = ask()
        except (OSError, subprocess.CalledProcessError):
            answer = None
        if answer:
            return answer
        time.sleep(0.5)
    print(f"{what}: not within {patience_s} s", file=sys.stderr)
    return None


def start(command, **more):
    process = subprocess.Popen([str(part) for part in command], start_new_session=True, **more)
    started.append(process)
    return process


def kill_all(*_):
    for process in started:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def too_late(*_):
    kill_all()
    sys.exit(f"not over within {SECONDS_MAX} s")


def run(options, way):
    command = [options.binary, "run", "--job", way, "--", sys.executable, "-m", "torch.distributed.run"]
    command += ["--standalone", "--nproc-per-node", options.ranks, __file__, "--job", way]
    return start(command, env=options.environment, stdout=subprocess.PIPE, text=True)


def tapes(options, way):
    """What is on the tapes of a job, by rank."""
    found = {}
    for file in pathlib.Path(options.environment["MEMTAPE_DIR"]).glob("*.tape"):
        shown = json.loads(subprocess.check_output([options.binary, "tape", file, "--json"], text=True))
        if shown["job"].split("@")[0] == way:
            found[shown["rank"]] = shown
    return found


def looked_at(options, way):
    found = [shown["collectives"]["groups"] for shown in tapes(options, way).values()]
    return len(found) == options.ranks and all(found)


def waited(options, way, seconds):
    """True when the last look at every rank is so much younger than its numbers."""
    found = [shown["collectives"] for shown in tapes(options, way).values()]
    groups = [(of["look_wall_ns"], group["since_wall_ns"]) for of in found for group in of["groups"]]
    return len(groups) == options.ranks and all(look - since > 1e9 * seconds for look, since in groups)


def capture(way):
    """The id of a capture that is closed, and its collectives."""
    url = f"http://127.0.0.1:{PORT}/api/v1/jobs/{way}/captures"
    request = urllib.request.Request(url, data=b"{}", method="POST")
    with urllib.request.urlopen(request, timeout=10) as answer:
        name = json.load(answer)["id"]
    wait_for("the capture", lambda: get(f"/api/v1/captures/{name}")["state"] != "collecting", 40)
    return name, get(f"/api/v1/captures/{name}/collectives")


def with_a_skip(options, rows):
    process = run(options, "skips")
    last = options.ranks - 1
    rows.append(("the ranks were seen to wait", True, wait_for("waiting", lambda: waited(options, "skips", 6))))
    name, found = capture("skips")
    group = next((each for each in found["groups"] if each["verdict"] != "in_step"), {})
    rows += [
        ("capture: verdict", "desynchronised", group.get("verdict")),
        ("capture: who is behind", [last], [each["rank"] for each in group.get("behind", [])]),
        ("capture: who waits", list(range(last)), group.get("waiting")),
        ("capture: ranks of the group", options.ranks, group.get("size")),
    ]
    text = subprocess.check_output([options.binary, "show", name], env=options.environment, text=True)
    print(text)
    rows.append(("memtape show says so", True, "desynchronised, not leaking" in text))
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    time.sleep(1)
    after = [each["collectives"]["groups"][0]["enqueued"] for each in tapes(options, "skips").values()]
    rows.append(("it stays on the tapes of the killed", options.ranks, len(after)))
    # The peers have enqueued those of both parameters.
    rows.append(("the killed: collectives apart", 2, max(after) - min(after)))


def without(options, rows):
    process = run(options, "clean")
    wait_for("looks", lambda: looked_at(options, "clean"))
    _, found = capture("clean")
    rows.append(("clean job: who is named", [], [of["sentence"] for of in found["groups"]
                                                 if of["verdict"] == "desynchronised"]))  # fmt: skip
    said = [line for line in process.stdout if line.startswith("expected ")]
    expected = {one["rank"]: one for one in (json.loads(line.split(" ", 1)[1]) for line in said)}
    rows.append(("clean job: exit code", 0, process.wait()))
    for rank, shown in sorted(tapes(options, "clean").items()):
        status, collectives = expected[rank]["dump"]["pg_status"], shown["collectives"]
        ours = {
            str(group["id"]): [-1 if group[name] is None else group[name] for name in ("enqueued", "completed")]
            for group in collectives["groups"]
        }
        theirs = {
            number: [int(of[f"last_{name}_collective"]) for name in ("enqueued", "completed")]
            for number, of in status.items()
        }
        looked = expected[rank]["begun"] < collectives["look_wall_ns"]
        rows.append((f"rank {rank}: the tape is PyTorch's dump", theirs, ours))
        rows.append((f"rank {rank}: looked at while it kept the GIL", True, looked))
        rows.append((f"rank {rank}: named", ["0"], [group["name"] for group in collectives["groups"]]))
        print(f"rank {rank}: a look took {collectives['look_took_ns'] / 1000:.0f} us")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--memtape", type=pathlib.Path, metavar="DIR")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--job", choices=["skips", "clean"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        return job(options.job)
    signal.signal(signal.SIGALRM, too_late)
    signal.alarm(SECONDS_MAX)
    begun, rows = time.monotonic(), []
    options.binary = options.memtape.resolve() / "memtape"
    shared = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory() as data, tempfile.TemporaryDirectory(dir=shared) as folder:
        url = f"http://127.0.0.1:{PORT}"
        options.environment = os.environ | {"MEMTAPE_DIR": folder, "MEMTAPE_COORDINATOR": url}
        listen = ["--listen", f"127.0.0.1:{PORT}", "--data-dir", data]
        try:
            start([options.binary, "coordinator", *listen])
            start([options.binary, "agent", "--coordinator", url], env=options.environment)
            assert wait_for("the coordinator", lambda: get("/api/v1/jobs") is not None, 20)
            with_a_skip(options, rows)
            without(options, rows)
        finally:
            kill_all()
    print(f"{'what':<44}{'expected':<28}found")
    for name, expected, found in rows:
        mark = "" if found == expected else "  DIFFERS"
        print(f"{name:<44}{str(expected):<28}{found}{mark}")
    print(f"{time.monotonic() - begun:.0f} s")
    sys.exit(any(found != expected for _, expected, found in rows))


if __name__ == "__main__":
    main()
