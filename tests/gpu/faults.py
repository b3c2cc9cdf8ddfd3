"""Seven faults and two benign patterns on real GPUs: what Memtape finds of each, and after how many steps.

    python3 tests/gpu/faults.py --memtape DIR --ranks 4 [--out FOLDER] [--only CASE]…

DIR holds the binary `memtape` and `libmemtape.so`. Starts a coordinator and an agent, runs
tests/gpu/faulty.py under `memtape run` once for each case, one after the other, and prints one table of
what was expected and what was found. FOLDER keeps the output of every process, all incidents, and the table
as `faults.json`. A case that hangs is ended after a while, and the whole after `--budget-s`; the table has
what there is. Exits 1 if anything differs. Needs only torch and Python's standard library.

With one rank there are no peers to compare with, so a fault of one rank is one of all ranks there.
"""

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

from services import Services, end, start, wait_for

HERE = pathlib.Path(__file__).resolve().parent
SCRIPT = HERE / "faulty.py"

# Case: class, ranks (one or all; none for a benign case), and whether its line ought to be named.
CASES = {
    "retained_loss": ("leak", "one", True),
    "eval_leak": ("leak", "all", True),
    "fragmentation": ("fragmentation", "all", False),
    "process_groups": ("non_torch", "all", True),
    "pinned_saves": ("host", "one", True),
    "collapsing_router": ("imbalance", "one", False),
    "variable_lengths": (None, None, False),
    "checkpoint_and_eval": (None, None, False),
    "serving": ("leak", "one", True),
}
STEP_MS = 20  # least duration of a step
# What the agent reads from outside, it reads once a second, and the detector looks at blocks of 16 steps: so
# such a case has longer steps, and half as many again.
READ_FROM_OUTSIDE = {"process_groups", "pinned_saves"}
STEP_MS_OUTSIDE = 80
CASE_S = 200  # a case takes about 40 s, that one 100; NCCL alone needs up to 20 s to come up
QUIET_S = 5  # incidents that say the same for so long have nothing to add
QUIET_S_MAX = 25
END_S = 30


def settled(services, job):
    """The incidents, once they have nothing to add."""
    started = since = time.monotonic()
    incidents = services.incidents(job)
    while time.monotonic() < min(since + QUIET_S, started + QUIET_S_MAX):
        time.sleep(0.5)
        now = services.incidents(job)
        if now != incidents:
            incidents, since = now, time.monotonic()
    return incidents


def run_case(options, services, tapes, case, left_s):
    log, is_slow = options.out / f"{case}.log", case in READ_FROM_OUTSIDE
    command = [
        options.memtape / "memtape", "run", "--job", case, "--dir", tapes, "--",
        sys.executable, "-m", "torch.distributed.run", "--standalone",
        "--nproc-per-node", options.ranks, SCRIPT, case,
        "--steps", options.steps * 3 // 2 if is_slow else options.steps,
        "--step-ms", STEP_MS_OUTSIDE if is_slow else STEP_MS,
        "--features", options.features, "--ddp-backend", options.ddp_backend,
    ]  # fmt: skip
    started = time.monotonic()
    job = start(command, log)
    try:
        code = job.wait(min(CASE_S, left_s))
    except subprocess.TimeoutExpired:
        code = "hangs"
    finally:
        if job.poll() is None:
            end(job)
    took_s = time.monotonic() - started
    wait_for(lambda: services.is_over(case), END_S if services.knows(case) else 0)
    said = log.read_text(errors="replace").splitlines()
    incidents = settled(services, case)
    (options.out / f"{case}.incidents.json").write_text(json.dumps(incidents, indent=1))
    ranks = services.asked(f"/jobs/{case}/ranks", {})
    (options.out / f"{case}.ranks.json").write_text(json.dumps(ranks, indent=1))
    return row(options, case, code, said, incidents) | {"seconds": round(took_s, 1)}


def first(said, word):
    return next((line[len(word):].strip() for line in said if line.startswith(word)), None)


def is_of(case, ranks, incident):
    """The incident is about the ranks that have the fault, and has its class."""
    of_class, who, _ = CASES[case]
    if incident["class"] != of_class:
        return False
    is_alone = incident["scope"] == "one_rank"
    if ranks == 1:
        return True
    return is_alone and incident["rank"] == ranks // 2 if who == "one" else not is_alone


def row(options, case, code, said, incidents):
    of_class, who, has_line = CASES[case]
    ranks = {"one": f"rank {options.ranks // 2}", "all": "all ranks", None: ""}[who]
    right = next((each for each in incidents if is_of(case, options.ranks, each)), None)
    shown = right or next(iter(incidents), None)
    onset, culprit = first(said, "ONSET "), shown and shown["culprit"]
    lines = [number for number, text in enumerate(SCRIPT.read_text().splitlines(), 1)
             if text.endswith(f"# CULPRIT {case}")]  # fmt: skip
    is_line = bool(culprit) and culprit["file"].endswith(SCRIPT.name) and culprit["line"] in lines
    found = "nothing"
    if shown:
        of = f"rank {shown['rank']}" if shown["scope"] == "one_rank" else shown["scope"].replace("_", " ")
        found = f"{shown['class']}, {of}"
    if code != 0:
        found = f"the job failed ({code}); {found}"
    return {
        "case": case,
        "expected": f"{of_class}, {ranks}" if of_class else "nothing",
        "found": found,
        "right": code == 0 and bool(right) == bool(of_class) and (bool(of_class) or not shown),
        "line": f"{os.path.basename(culprit['file'])}:{culprit['line']}" if culprit else "",
        "line_right": is_line if has_line else None,
        "sentence": shown["sentence"] if shown else None,
        "delay_steps": right["detected_step"] - int(onset) if right and onset else None,
        "false_incidents": len(incidents) - bool(right),
        "exit_code": code,
        "device": first(said, "DEVICE "),
        "speed": first(said, "done: "),
    }


def text(rows):
    lines = [f"{'case':20} {'expected':26} {'found':30} {'line':16} {'delay':>5}"]
    for each in rows:
        delay = "" if each["delay_steps"] is None else each["delay_steps"]
        remarks = [
            "" if each["right"] else "<-- not as expected",
            "<-- not the line" if each["line_right"] is False else "",
            f"<-- {each['false_incidents']} false" if each["false_incidents"] else "",
        ]
        lines.append(f"{each['case']:20} {each['expected']:26} {each['found']:30} {each['line']:16} "
                     f"{delay!s:>5} {' '.join(filter(None, remarks))}".rstrip())  # fmt: skip
        if each["sentence"]:
            lines.append(f"    {each['sentence']}")
    return "\n".join(lines)


def not_run(case):
    return {"case": case, "expected": "", "found": "not run: no time left", "right": False, "line": "",
            "sentence": None, "line_right": None, "delay_steps": None, "false_incidents": 0,
            "exit_code": None}  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--memtape", type=pathlib.Path, required=True, metavar="DIR")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--features", type=int, default=1024, help="width of the model")
    parser.add_argument("--only", action="append", choices=CASES, metavar="CASE")
    parser.add_argument("--out", type=pathlib.Path, metavar="FOLDER", help="a temporary one if not said")
    parser.add_argument("--budget-s", type=float, default=480, help="for all cases together")
    parser.add_argument("--ddp-backend", default="nccl", help="gloo where NCCL moves nothing, as on the fake")
    options = parser.parse_args()
    options.memtape = options.memtape.resolve()
    options.out = (options.out or pathlib.Path(tempfile.mkdtemp(prefix="memtape-faults-"))).resolve()
    options.out.mkdir(parents=True, exist_ok=True)

    began = time.monotonic()
    tapes = pathlib.Path(tempfile.mkdtemp(prefix="memtape-faults-", dir="/dev/shm"))
    services, rows = Services(options.memtape / "memtape", options.out, tapes), []
    try:
        if not wait_for(lambda: services.asked("/jobs", None), 30):
            sys.exit(f"the coordinator does not answer; see {options.out}/coordinator.log")
        for case in options.only or CASES:
            left_s = began + options.budget_s - time.monotonic()
            done = run_case(options, services, tapes, case, left_s) if left_s > 30 else not_run(case)
            rows.append(done)
            print("\n".join(text([done]).splitlines()[1:]), file=sys.stderr, flush=True)
            found = {
                "figures": {
                    "cases": len(rows),
                    "right": sum(each["right"] for each in rows),
                    "lines": sum(each["line_right"] is not None for each in rows),
                    "lines_right": sum(each["line_right"] is True for each in rows),
                    "false_incidents": sum(each["false_incidents"] for each in rows),
                    "seconds": round(time.monotonic() - began, 1),
                },
                "ranks": options.ranks,
                "rows": rows,
            }
            (options.out / "faults.json").write_text(json.dumps(found, indent=1) + "\n")
        (options.out / "nodes.json").write_text(json.dumps(services.asked("/nodes", {}), indent=1))
    finally:
        services.end()
        shutil.rmtree(tapes, ignore_errors=True)
    print(f"{text(rows)}\n\n{options.out}/faults.json")
    is_good = all(each["right"] and each["line_right"] is not False and not each["false_incidents"]
                  for each in rows)  # fmt: skip
    sys.exit(not is_good)


if __name__ == "__main__":
    main()
