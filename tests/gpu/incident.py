"""A leak on one rank of a real FSDP2 job, from the first allocation to the named line of code.

    python3 tests/gpu/incident.py --memtape DIR --ranks 4 [--out FOLDER]

DIR holds the binary `memtape` and `libmemtape.so`. Starts a coordinator and an agent, runs
tests/gpu/train.py under `memtape run` twice, once with a leak on one rank and once without, and prints
one table of what was expected and what was found. FOLDER keeps what every process said. Exits 1 if anything
differs. Needs only torch and Python's standard library.
"""

import argparse
import json
import os
import pathlib
import sys
import tempfile

from services import Services, start, wait_for

HERE = pathlib.Path(__file__).resolve().parent

# Until a job that has ended is known to have.
END_S = 30


def train(options, tapes, job, *extra):
    return start([
        options.memtape / "memtape", "run", "--job", job, "--dir", tapes, "--",
        sys.executable, "-m", "torch.distributed.run", "--standalone",
        "--nproc-per-node", options.ranks, HERE / "train.py", "--steps", options.steps, *extra,
    ], options.out / f"{job}.log")  # fmt: skip


def marked_line(mark):
    lines = (HERE / "train.py").read_text().splitlines()
    [line] = [number for number, text in enumerate(lines, 1) if text.rstrip().endswith(mark)]
    return line


def with_leak(options, services, tapes, rows):
    leak_rank = options.ranks // 2
    job = train(options, tapes, "leaking", "--leak-rank", leak_rank)
    named = wait_for(
        lambda: next((each for each in services.incidents("leaking") if each["culprit"]), None),
        options.patience,
    )
    code = job.wait()
    rows.append(("job with a leak: exit code", 0, code))
    if not named:
        rows.append(("incident with a line of code", "one", None))
        return
    found = services.get(f"/incidents/{named['id']}")
    print(json.dumps(found, indent=1)[:3000])
    culprit = found["culprit"]
    rows += [
        ("incidents", 1, len(services.incidents("leaking"))),
        ("rank", leak_rank, found["rank"]),
        ("class", "leak", found["class"]),
        ("culprit file", "train.py", os.path.basename(culprit["file"])),
        ("culprit line", marked_line("# CULPRIT"), culprit["line"]),
    ]
    capture = services.get(f"/captures/{found['capture_id']}")
    rows += [
        ("capture: ranks", options.ranks, capture["ranks"]),
        ("capture: aligned at one step", options.ranks, capture["aligned"]),
    ]
    print(found["sentence"])
    print(f"onset step {found['onset_step']}, detected at step {found['detected_step']}")
    for rank in services.get("/jobs/leaking/ranks")["ranks"]:
        for device in rank["devices"]:
            mib = {key: device[key] and device[key] >> 20 for key in ("allocated_bytes", "reserved_bytes", "process_bytes")}
            print(f"rank {rank['rank']}: {device['uuid']} MiB {mib} lost {rank['lost_events']} {rank['limitations']}")


def without_leak(options, services, tapes, rows):
    code = train(options, tapes, "clean").wait()
    rows += [
        ("clean job: exit code", 0, code),
        ("clean job: is known to have ended", True, wait_for(lambda: services.is_over("clean"), END_S)),
        ("clean job: incidents", 0, len(services.incidents("clean"))),
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--memtape", type=pathlib.Path, required=True, metavar="DIR")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--out", type=pathlib.Path, metavar="FOLDER")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--patience", type=float, default=120, metavar="SECONDS")
    options = parser.parse_args()
    options.out = options.out or pathlib.Path(tempfile.mkdtemp(prefix="memtape-incident-"))
    options.out.mkdir(parents=True, exist_ok=True)

    rows = []
    with tempfile.TemporaryDirectory(prefix="memtape-incident-", dir="/dev/shm") as tapes:
        services = Services(options.memtape / "memtape", options.out, tapes)
        try:
            with_leak(options, services, tapes, rows)
            without_leak(options, services, tapes, rows)
            print(json.dumps(services.get("/nodes"))[:1500])
        finally:
            services.end()

    print(f"\n{'what':32} {'expected':>10} {'found':>10}")
    for what, expected, found in rows:
        print(f"{what:32} {expected!s:>10} {found!s:>10} {'' if expected == found else '  <-- differs'}")
    sys.exit(any(expected != found for _, expected, found in rows))


if __name__ == "__main__":
    main()
