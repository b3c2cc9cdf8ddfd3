"""How jobs end on real GPUs, and what is said of it: one rank killed, one that hangs, and a job that its
owner ends.

    python3 tests/gpu/ends.py --memtape DIR --ranks 4 [--out FOLDER] [--only CASE]

DIR holds the binary `memtape` and `libmemtape.so`. Starts a coordinator and an agent, runs tests/gpu/train.py
under `memtape run` and torchrun once for each case, and prints one table of what was expected and what was
found, with the seconds that it took:

    killed     the last rank gets SIGKILL, and torchrun ends the others: the last rank is named
    hangs      the last rank is stopped, and the others wait for it in NCCL: an incident names it while it lasts
    cancelled  the launcher gets SIGTERM, as from a scheduler: the job has ended, and there is no incident

Exits 1 if anything differs. Needs only torch and Python's standard library.
"""

import argparse
import os
import pathlib
import signal
import sys
import tempfile
import time

from services import Services, end, start, wait_for

HERE = pathlib.Path(__file__).resolve().parent

# Steps before anything happens: the job is known and past its warm-up.
STEPS_BEFORE = 60

# Seconds without an incident after which there will be none.
QUIET_S = 20


def train(options, tapes, job):
    return start([
        options.memtape / "memtape", "run", "--job", job, "--dir", tapes, "--",
        sys.executable, "-m", "torch.distributed.run", "--standalone",
        "--nproc-per-node", options.ranks, HERE / "train.py", "--steps", 1_000_000, "--eval-every", 1_000_000,
    ], options.out / f"{job}.log")  # fmt: skip


def trained(services, job, patience):
    """The ranks of a job that all made some steps."""

    def ranks():
        found = services.asked(f"/jobs/{job}/ranks", {"ranks": []})["ranks"]
        return found if found and all(each["step"] >= STEPS_BEFORE for each in found) else None

    return wait_for(ranks, patience) or sys.exit(f"{job}: not all ranks made {STEPS_BEFORE} steps")


def reported(services, job, patience):
    """The first incident of a job, with its seconds since now; none if there was none."""
    begun = time.monotonic()
    found = wait_for(lambda: services.incidents(job), patience)
    return (found[0], time.monotonic() - begun) if found else (None, patience)


def killed(options, services, tapes, rows):
    job = train(options, tapes, "killed")
    ranks = trained(services, "killed", options.patience)
    victim = max(ranks, key=lambda rank: rank["rank"])
    os.kill(victim["pid"], signal.SIGKILL)
    incident, seconds = reported(services, "killed", options.patience)
    job.wait()
    time.sleep(QUIET_S)
    rows += [
        ("killed: class", "died", incident and incident["class"], seconds),
        ("killed: rank", victim["rank"], incident and incident["rank"], seconds),
        ("killed: incidents", 1, len(services.incidents("killed")), seconds),
    ]


def hangs(options, services, tapes, rows):
    job = train(options, tapes, "hangs")
    ranks = trained(services, "hangs", options.patience)
    victim = max(ranks, key=lambda rank: rank["rank"])
    os.kill(victim["pid"], signal.SIGSTOP)
    _, seconds = reported(services, "hangs", options.patience)
    # The capture tells who waits for whom.
    named = wait_for(
        lambda: next((each for each in services.incidents("hangs") if each["capture_id"]), None), options.patience
    )
    if named:
        wait_for(lambda: services.get(f"/captures/{named['capture_id']}")["state"] != "collecting", 30)
        time.sleep(3)
        named = services.get(f"/incidents/{named['id']}")
        print(named["sentence"], *named["evidence"], sep="\n  ")
    rows += [
        ("hangs: class", "desynchronised", named and named["class"], seconds),
        ("hangs: rank", victim["rank"], named and named["rank"], seconds),
        ("hangs: incidents", 1, len(services.incidents("hangs")), seconds),
    ]
    os.kill(victim["pid"], signal.SIGCONT)
    end(job)


def cancelled(options, services, tapes, rows):
    job = train(options, tapes, "cancelled")
    trained(services, "cancelled", options.patience)
    job.terminate()
    job.wait()
    begun = time.monotonic()
    is_over = bool(wait_for(lambda: services.is_over("cancelled"), options.patience))
    seconds = time.monotonic() - begun
    time.sleep(QUIET_S)
    rows += [
        ("cancelled: is known to have ended", True, is_over, seconds),
        ("cancelled: incidents", 0, len(services.incidents("cancelled")), seconds),
    ]


CASES = {"killed": killed, "hangs": hangs, "cancelled": cancelled}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--memtape", type=pathlib.Path, required=True, metavar="DIR")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--out", type=pathlib.Path, metavar="FOLDER")
    parser.add_argument("--only", action="append", choices=list(CASES), metavar="CASE")
    parser.add_argument("--patience", type=float, default=90, metavar="SECONDS")
    options = parser.parse_args()
    options.out = options.out or pathlib.Path(tempfile.mkdtemp(prefix="memtape-ends-"))
    options.out.mkdir(parents=True, exist_ok=True)

    rows = []
    with tempfile.TemporaryDirectory(prefix="memtape-ends-", dir="/dev/shm") as tapes:
        services = Services(options.memtape / "memtape", options.out, tapes)
        try:
            for case in options.only or CASES:
                CASES[case](options, services, tapes, rows)
                for incident in services.incidents(case):
                    print(f"{case}: {incident['class']}, rank {incident['rank']}: {incident['sentence']}", flush=True)
        finally:
            services.end()

    print(f"\n{'what':36} {'expected':>16} {'found':>16} {'seconds':>8}")
    for what, expected, found, seconds in rows:
        mark = "" if expected == found else "  <-- differs"
        print(f"{what:36} {expected!s:>16} {found!s:>16} {seconds:8.1f}{mark}")
    sys.exit(any(expected != found for _, expected, found, _ in rows))


if __name__ == "__main__":
    main()
