"""A leak on one rank of a real FSDP2 job, from the first allocation to the named line of code.

    python3 tests/gpu/incident.py --memtape DIR --ranks 4

DIR holds the binary `memtape` and `libmemtape.so`. Starts a coordinator and an agent, runs
tests/gpu/train.py under `memtape run` twice, once with a leak on one rank and once without, and prints
one table of what was expected and what was found. Exits 1 if anything differs. Needs only torch and
Python's standard library.
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

HERE = pathlib.Path(__file__).resolve().parent
PORT = 7771


def get(path):
    with urllib.request.urlopen(f"http://127.0.0.1:{PORT}{path}", timeout=10) as answer:
        return json.load(answer)


def wait_for(what, ask, patience_s):
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        try:
            answer = ask()
        except OSError:
            answer = None
        if answer:
            return answer
        time.sleep(0.5)
    print(f"{what}: not within {patience_s} s", file=sys.stderr)
    return None


def train(memtape, environment, job, ranks, steps, *extra):
    command = [
        memtape, "run", "--", sys.executable, "-m", "torch.distributed.run", "--standalone",
        "--nproc-per-node", str(ranks), HERE / "train.py", "--steps", str(steps), *extra,
    ]  # fmt: skip
    environment = environment | {"MEMTAPE_JOB": job}
    return subprocess.Popen([str(part) for part in command], env=environment)


def incidents(job):
    return get(f"/api/v1/incidents?job={job}")["incidents"]


def marked_line(mark):
    lines = (HERE / "train.py").read_text().splitlines()
    [line] = [number for number, text in enumerate(lines, 1) if text.rstrip().endswith(mark)]
    return line


def with_leak(options, environment, rows):
    leak_rank = options.ranks // 2
    job = train(
        options.binary, environment, "leaking", options.ranks, options.steps, "--leak-rank", str(leak_rank)
    )
    named = wait_for(
        "an incident with its line of code",
        lambda: next((each for each in incidents("leaking") if each["culprit"]), None),
        options.patience,
    )
    code = job.wait()
    rows.append(("job with a leak: exit code", 0, code))
    if not named:
        rows.append(("incident", "one", None))
        return
    found = get(f"/api/v1/incidents/{named['id']}")
    print(json.dumps(found, indent=1)[:3000])
    culprit = found["culprit"]
    rows += [
        ("incidents", 1, len(incidents("leaking"))),
        ("rank", leak_rank, found["rank"]),
        ("class", "leak", found["class"]),
        ("culprit file", "train.py", os.path.basename(culprit["file"])),
        ("culprit line", marked_line("# CULPRIT"), culprit["line"]),
    ]
    capture = get(f"/api/v1/captures/{found['capture_id']}")
    rows += [
        ("capture: ranks", options.ranks, capture["ranks"]),
        ("capture: aligned at one step", options.ranks, capture["aligned"]),
    ]
    print(found["sentence"])
    print(f"onset step {found['onset_step']}, detected at step {found['detected_step']}")
    for rank in get("/api/v1/jobs/leaking/ranks")["ranks"]:
        for device in rank["devices"]:
            mib = {key: device[key] and device[key] >> 20 for key in ("allocated_bytes", "reserved_bytes", "process_bytes")}
            print(f"rank {rank['rank']}: {device['uuid']} MiB {mib} lost {rank['lost_events']} {rank['limitations']}")


def without_leak(options, environment, rows):
    code = train(options.binary, environment, "clean", options.ranks, options.steps).wait()
    time.sleep(3)
    rows += [("clean job: exit code", 0, code), ("clean job: incidents", 0, len(incidents("clean")))]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--memtape", type=pathlib.Path, required=True, metavar="DIR")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--patience", type=float, default=120, metavar="SECONDS")
    options = parser.parse_args()
    options.binary = options.memtape / "memtape"

    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        environment = os.environ | {"MEMTAPE_DIR": "/dev/shm/memtape-gpu-test"}
        listen = f"127.0.0.1:{PORT}"
        services = [
            subprocess.Popen([options.binary, "coordinator", "--listen", listen, "--data-dir", f"{scratch}/data"]),
            subprocess.Popen(
                [options.binary, "agent", "--coordinator", f"http://{listen}"], env=environment
            ),
        ]
        try:
            assert wait_for("the coordinator", lambda: get("/api/v1/jobs") is not None, 20)
            with_leak(options, environment, rows)
            without_leak(options, environment, rows)
            print(json.dumps(get("/api/v1/nodes"))[:1500])
        finally:
            for service in services:
                service.terminate()
            for service in services:
                service.wait(20)

    print(f"\n{'what':32} {'expected':>10} {'found':>10}")
    for what, expected, found in rows:
        print(f"{what:32} {expected!s:>10} {found!s:>10} {'' if expected == found else '  <-- differs'}")
    sys.exit(any(expected != found for _, expected, found in rows))


if __name__ == "__main__":
    main()
