"""Rounds of faults on a machine of many cores, in many processes at once; and their table.

`run` starts processes of `memtape-load rounds`, each with a seed, clusters and buckets of its own, on
simulated agents and real ranks, no GPU needed. All of them add their lines to one file, a line for
each round that ended; it is whole also when the time is over before the rounds are. `table` joins any
number of such files. A round is counted where a coordinator took over or acknowledged again; p99 is
the time that 99 % of the rounds do not exceed. `most objects` are the most objects of rows that a
round had in its bucket when its fault began: a takeover takes longer the more there are.
"""

import argparse
import collections
import json
import math
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time

COUNTED = ["records", "incidents", "captures", "audit_entries", "deaths", "actions"]
# What tapes of real ranks take for each process.
TAPE_BYTES = 192 << 20
# A process that does not end by itself in time is killed.
LATE_SECONDS = 15


def run(options):
    each = math.ceil(options.rounds / options.parallel)
    work = pathlib.Path(tempfile.mkdtemp(prefix="rounds-"))
    tapes = pathlib.Path("/dev/shm")
    space = os.statvfs(tapes) if tapes.is_dir() else None
    if space is None or space.f_bavail * space.f_frsize < options.parallel * TAPE_BYTES:
        tapes = work
    command = [options.programs / "memtape-load", "--memtape", options.programs / "memtape", "rounds"]
    command += ["--rounds", each, "--bucket-ms", options.latency_ms, "--seconds", options.seconds]
    command += ["--cluster-rounds", options.cluster_rounds, "--lines", options.out, "--tapes", tapes]
    command += [f"--kind={kind}" for kind in options.kinds if kind != "all"]
    log = options.out.with_suffix(".log").open("ab")
    print(f"{options.parallel} processes of {each} rounds of each kind, seeds from {options.seed}", flush=True)
    running = []
    for number in range(options.parallel):
        words = [str(word) for word in [*command, "--seed", options.seed + number]]
        environment = os.environ | {"TMPDIR": str(work)}
        running.append(subprocess.Popen(words, stdout=subprocess.PIPE, stderr=log, env=environment))
    failed, end = 0, time.monotonic() + options.seconds + LATE_SECONDS
    for process in running:
        try:
            said, _ = process.communicate(timeout=max(0, end - time.monotonic()))
            unfinished = json.loads(said)["figures"]["unfinished"]
        except (subprocess.TimeoutExpired, ValueError) as error:
            process.kill()
            unfinished = repr(error)
        if unfinished:
            print(f"a process ended early: {unfinished}")
            failed += 1
    # What is left are the logs of rounds that failed.
    with tarfile.open(options.out.with_suffix(".logs.tgz"), "w:gz") as kept:
        kept.add(work, "logs", filter=lambda file: file if file.isdir() or file.name.endswith(".log") else None)
    shutil.rmtree(work, ignore_errors=True)
    if not options.out.exists() or not options.out.read_text().strip():
        print("no round ended")
        failed += 1
    return failed + table([options.out])


def table(files):
    """Prints a line for each kind and latency; the number of rounds that failed."""
    lines = [line for file in files if file.exists() for line in file.read_text().splitlines()]
    rounds = collections.defaultdict(list)
    for found in map(json.loads, lines):
        rounds[found["bucket_ms"], found["kind"]].append(found)
    head = ["ms", "kind", "rounds", "median s", "p99 s", "longest s", "most objects", "failed", "lost", "doubled"]
    rows = [[*head, *(f"{name} compared" for name in COUNTED)]]
    for (latency, kind), found in sorted(rounds.items()):
        took = sorted(each["took_s"] for each in found if each["took_s"] is not None)
        times = [took[math.ceil(len(took) * part) - 1] if took else "-" for part in (0.5, 0.99, 1)]
        objects = max(each["wal_objects"] for each in found)
        failed = sum(1 for each in found if each["wrong"])
        sums = [sum(each[name] for each in found) for name in ["lost", "doubled", *COUNTED]]
        rows.append([latency, kind, len(found), *times, objects, failed, *sums])
    widths = [max(len(str(row[at])) for row in rows) for at in range(len(rows[0]))]
    for row in rows:
        print("  ".join(str(cell).rjust(width) for cell, width in zip(row, widths)))
    wrong = [each for found in rounds.values() for each in found if each["wrong"]]
    for each in wrong:
        print(f"{each['kind']}, seed {each['seed']}, round {each['round_of_cluster']}: {each['wrong']}")
    return len(wrong)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    rounds = commands.add_parser("run", help="make rounds, and show their table")
    rounds.add_argument("--programs", type=pathlib.Path, default=pathlib.Path("target/release"),
                        help="folder with memtape and memtape-load")  # fmt: skip
    rounds.add_argument("--kinds", nargs="+", default=["all"], help="kinds of faults, or all")
    rounds.add_argument("--rounds", type=int, default=100, help="rounds of each kind, of all processes")
    rounds.add_argument("--cluster-rounds", type=int, default=10, help="rounds until a fresh cluster begins")
    rounds.add_argument("--parallel", type=int, default=os.cpu_count(), help="processes at once")
    rounds.add_argument("--latency-ms", type=int, default=20, help="time of each request to the bucket")
    rounds.add_argument("--seed", type=int, default=1, help="seed of the first process")
    rounds.add_argument("--seconds", type=int, default=560, help="end after this time with what there is")
    rounds.add_argument("--out", type=pathlib.Path, required=True, help="file of lines, which is added to")
    shown = commands.add_parser("table", help="show the table of files that `run` wrote")
    shown.add_argument("files", nargs="+", type=pathlib.Path)
    options = parser.parse_args()
    sys.exit(bool(run(options) if options.command == "run" else table(options.files)))


if __name__ == "__main__":
    main()
