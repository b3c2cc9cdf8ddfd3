"""Remedies on real GPUs: a job that would run out of memory is restarted at its checkpoint, garbage and
cached segments are given back while a job runs on, a leak is left alone, and a hint is applied at the next
start.

    python3 tests/gpu/heal.py --memtape DIR [--out FOLDER] [--only CASE]…

DIR holds the binary `memtape` and `libmemtape.so`. Two ranks train under torchrun, with NCCL. One coordinator
acts by one policy file, which has a rule for each case. Prints what was expected and what was found after each
case. FOLDER keeps what every process said, the actions of each case, and the table as `heal.json`. Exits 1
if anything differs. Needs two GPUs, torch and Python's standard library.
"""

import argparse
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

from services import Services, end, start, wait_for

TORCH = pathlib.Path(__file__).resolve().parent.parent / "torch"
PYTHON = TORCH.parent.parent / "python"
RANKS = 2

POLICY = """
[budgets]
cool-down-inside = "5s"
[[rule]]
jobs = ["dies"]
mode = "dry-run"
remedies = ["restart"]
[[rule]]
jobs = ["healed"]
mode = "act"
remedies = ["restart"]
[[rule]]
jobs = ["leak"]
mode = "act"
remedies = ["gc"]
[[rule]]
jobs = ["hinted"]
mode = "off"
[[rule]]
mode = "act"
remedies = ["gc", "empty-cache"]
"""

# An attempt that begins at step 0 fills its device after as many steps, and does not finish.
STEPS_UNTIL_FULL, STEPS = 1200, 1500
CASE_S = 200
TWICE = "did nothing: the last 2 garbage collections did not help: a person must look"


class Rig:
    """The services, and where everything is kept."""

    def __init__(self, options):
        self.memtape, self.out, self.options = options.memtape / "memtape", options.out, options
        self.jobs = []
        self.tapes = pathlib.Path(tempfile.mkdtemp(prefix="memtape-heal-", dir="/dev/shm"))
        policy = self.out / "policy.toml"
        policy.write_text(POLICY)
        self.services = Services(self.memtape, self.out, self.tapes, "--policy", policy,
                                 "--restart-signal", "SIGTERM")  # fmt: skip

    def run(self, job, *arguments, log=None):
        """Starts a command under `memtape run`; its output goes to a file, which is returned, too."""
        command = [self.memtape, "run", "--job", job, "--dir", self.tapes, *arguments]
        log = self.out / f"{log or job}.log"
        self.jobs.append(start(command, log))
        return self.jobs[-1], log

    def torchrun(self, job, actions, script, *arguments, restarts=0):
        launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", RANKS,
                  "--max-restarts", restarts, TORCH / script, *arguments]  # fmt: skip
        return self.run(job, "--actions", actions, "--", *launch)

    def actions(self, job):
        """Decisions about a job, oldest first."""
        answer = self.services.asked("/actions", {"actions": []})
        mine = [each for each in reversed(answer["actions"]) if each["job"].split("@")[0] == job]
        (self.out / f"{job}.actions.json").write_text(json.dumps(mine, indent=1))
        return mine

    def cli(self, *arguments):
        url = f"http://127.0.0.1:{self.services.port}"
        command = [self.memtape, *arguments, "--coordinator", url, "--json"]
        done = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, timeout=60, check=False)
        return json.loads(done.stdout) if done.returncode == 0 else None

    def close(self):
        for job in self.jobs:
            if job.poll() is None:
                end(job)
        self.services.end()
        shutil.rmtree(self.tapes, ignore_errors=True)


def finish(job, log, seconds=CASE_S):
    """The exit code of a job that is ended by force if it hangs, and what it said."""
    try:
        code = job.wait(seconds)
    except subprocess.TimeoutExpired:
        end(job)
        code = "hangs"
    return code, log.read_text(errors="replace").splitlines()


def numbers(said, text):
    return [int(each) for line in said for each in re.findall(f"{text}(\\d+)", line)]


def train_healed(rig, job, restarts):
    folder = rig.out / f"{job}-checkpoint"
    folder.mkdir()
    arguments = ["--folder", folder, "--steps", STEPS, "--backend", rig.options.backend,
                 "--leak-mib", rig.options.device_mib // STEPS_UNTIL_FULL]  # fmt: skip
    return rig.torchrun(job, "checkpoint,signal", "train_healed.py", *arguments, restarts=restarts)


def dies(rig):
    code, said = finish(*train_healed(rig, "dies", 0))
    decisions = {each["decision"] for each in rig.actions("dies")}
    return [
        ("ends well", False, code == 0),
        ("out of memory", True, any("OutOfMemoryError" in line for line in said)),
        ("would restart", True, "would restart" in decisions),
    ]


def healed(rig):
    job, log = train_healed(rig, "healed", 2)
    restarts = lambda: [each for each in rig.actions("healed") if each["decision"] == "restart"]  # noqa: E731
    restart = wait_for(lambda: next((each for each in restarts() if each["verdict"]), None), CASE_S) or {}
    code, said = finish(job, log)
    written, begun = numbers(said, "wrote its checkpoint after step "), numbers(said, "begins after step ")
    print(json.dumps(restart, indent=1))
    return [
        ("exit code", 0, code),
        ("out of memory", False, any("OutOfMemoryError" in line for line in said)),
        ("ranks that wrote a checkpoint", RANKS, len(written)),
        ("steps of the checkpoint", 1, len(set(written))),
        ("attempts begin after", sorted([0, 0] + written), sorted(begun)),
        ("restarts", 1, len(restarts())),
        ("verdict", "helped", restart.get("verdict")),
    ]


def remedied(rig, fault, judge):
    stop = rig.out / f"{fault}.stop"
    job, log = rig.torchrun(fault, "gc,empty-cache", "train_remedied.py", fault, "--stop", stop,
                            "--backend", rig.options.mixed_backend)  # fmt: skip
    taken = lambda: [each for each in rig.actions(fault) if each["decision"] != "nothing"]  # noqa: E731
    rows = judge(taken)
    stop.write_text("")
    code, said = finish(job, log, 60)
    begun, finished = numbers(said, "begins, pid "), numbers(said, "finished after step \\d+, pid ")
    return rows + [("exit code", 0, code), ("the same processes", sorted(begun), sorted(finished))]


def helped(decision):
    def judge(taken):
        action = wait_for(lambda: next((each for each in taken() if each["verdict"]), None), CASE_S) or {}
        print(json.dumps(action, indent=1))
        return [
            ("decision", decision, action.get("decision")),
            ("on 2 of 2 ranks", True, "done on 2 of 2 ranks" in action.get("outcome", "")),
            ("verdict", "helped", action.get("verdict")),
        ]

    return judge


def cycles(rig):
    return remedied(rig, "cycles", helped("collect garbage"))


def fragments(rig):
    return remedied(rig, "fragments", helped("empty the cache"))


def leak(rig):
    def judge(taken):
        is_left = lambda: any(each["why"] == TWICE for each in rig.actions("leak"))  # noqa: E731
        wait_for(is_left, CASE_S)
        print(json.dumps(rig.actions("leak"), indent=1))
        return [
            ("actions", ["collect garbage"] * 2, [each["decision"] for each in taken()]),
            ("verdicts", ["no effect"] * 2, [each["verdict"] for each in taken()]),
            ("then left alone", True, is_left()),
        ]

    return remedied(rig, "leak", judge)


def hinted(rig):
    said, answers, url = [], [], f"http://127.0.0.1:{rig.services.port}"
    for nth in (1, 2):
        go = rig.out / f"go-{nth}"
        command = [sys.executable, TORCH / "hinted.py", go]
        job, log = rig.run("hinted", "--apply-hints", "--coordinator", url, "--", *command, log=f"hinted-{nth}")
        wait_for(lambda log=log: "waits" in log.read_text(errors="replace"), CASE_S)
        time.sleep(3)  # the newest step is reported
        if nth == 1:
            rig.cli("capture", "hinted", "--wait")
        go.write_text("")
        said.append(finish(job, log, 60))
        is_there = (lambda it: it and it["settings"]) if nth == 1 else (lambda it: it and it["applied"]["after"])
        answers.append(wait_for(lambda is_there=is_there: is_there(now := rig.cli("hints", "hinted")) and now, 60))
    before, after = answers
    applied = (after or {}).get("applied") or {}
    print(json.dumps(before, indent=1), json.dumps(applied, indent=1), sep="\n")
    is_expandable = [line for _, lines in said for line in lines if line.startswith("expandable ")]
    return [
        ("exit codes", [0, 0], [code for code, _ in said]),
        ("settings", "expandable_segments:True", (before or {}).get("settings")),
        ("segments", ["expandable False", "expandable True"], is_expandable),
        ("verdict", "helped", applied.get("verdict")),
    ]


CASES = [dies, healed, cycles, fragments, leak, hinted]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--memtape", type=pathlib.Path, required=True, metavar="DIR")
    parser.add_argument("--out", type=pathlib.Path, metavar="FOLDER", help="a temporary one if not said")
    names = [case.__name__ for case in CASES]
    parser.add_argument("--only", action="append", choices=names, metavar="CASE")
    parser.add_argument("--backend", default="nccl", help="gloo where NCCL moves nothing, as on the fake")
    options = parser.parse_args()
    options.memtape = options.memtape.resolve()
    options.out = (options.out or pathlib.Path(tempfile.mkdtemp(prefix="memtape-heal-"))).resolve()
    options.out.mkdir(parents=True, exist_ok=True)
    options.mixed_backend = "gloo" if options.backend == "gloo" else f"cpu:gloo,cuda:{options.backend}"
    ask = "import torch; print(torch.cuda.get_device_properties(0).total_memory >> 20)"
    options.device_mib = int(subprocess.check_output([sys.executable, "-c", ask]))
    os.environ["PYTHONPATH"] = str(PYTHON)  # the module `memtape`, which offers the checkpoint
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"  # torchrun's restarts fail without it

    rig, rows = Rig(options), []
    try:
        if not wait_for(lambda: rig.services.asked("/jobs", None), 30):
            sys.exit(f"the coordinator does not answer; see {options.out}/coordinator.log")
        for case in CASES:
            if options.only and case.__name__ not in options.only:
                continue
            began = time.monotonic()
            try:
                found = case(rig)
            except Exception as error:  # the other cases run all the same
                found = [("error", None, repr(error))]
            found.append(("seconds", None, round(time.monotonic() - began, 1)))
            for row in found:
                show(case.__name__, *row)
            rows += [(case.__name__, *row) for row in found]
            named = [dict(zip(("case", "what", "expected", "found"), row)) for row in rows]
            (options.out / "heal.json").write_text(json.dumps(named, indent=1) + "\n")
    finally:
        rig.close()
    sys.exit(any(differs(*row[1:]) for row in rows))


def differs(what, expected, found):
    return what != "seconds" and expected != found


def show(case, what, expected, found):
    """One row of the table, at once: a machine that is lent may go before the last case."""
    shown = "" if what == "seconds" else f"{expected!s:26}"
    mark = "  <-- differs" if differs(what, expected, found) else ""
    print(f"{case:10} {what:30} {shown} {found!s:26}{mark}".rstrip(), flush=True)


if __name__ == "__main__":
    main()
