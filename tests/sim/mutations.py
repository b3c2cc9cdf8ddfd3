"""Breaks rules on purpose, one at a time, to see that the simulation finds each: mutations.py
[--seeds N] [--check]. Run by `cargo xtask sim --mutations`; `--check` only looks for the lines.

A simulation that finds nothing may be blind. The tree is copied to target/mutations, one line of it
is changed, and the simulation runs on that. A change whose line is no longer there once is a failure
too: the list is then out of date. Prints one JSON object, and what was found on stderr.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
ASIDE = ROOT / "target/mutations"

# Seeds that each rule is tried on: the rarest is found by one in a thousand.
SEEDS = 4_000

# One with a stage takes as long as some tens without.
SEEDS_OF_A_STAGE = 40

# The rule, its file, the line, what comes in its place, and the stage of a restart at which the
# coordinator is killed, for rules about acting on a job.
MUTATIONS = [
    (
        "a manifest is closed by its deadline",
        "core/src/capture/captures.rs",
        "if now_ns >= flight.deadline_ns() {",
        "if now_ns >= flight.deadline_ns().saturating_add(60_000_000_000) {",
        None,
    ),
    (
        "aligned is the state at exactly T",
        "agent/src/capture/rewind.rs",
        "rewind.step.map_or(PointInTime::Present, PointInTime::EndOf)",
        "rewind.step.map_or(PointInTime::Present, |_| PointInTime::Present)",
        None,
    ),
    (
        "a stored snapshot survives its agent's stream",
        "core/src/capture/flight.rs",
        "            part.answer = None;\n",
        "            (part.answer, part.snapshot) = (None, None);\n",
        None,
    ),
    (
        "a stored snapshot survives the coordinator",
        "core/src/capture/flight.rs",
        "flight.snapshot_stored(&part.tape_id, part.bytes, hash);",
        "let _ = hash;",
        None,
    ),
    (
        "a capture that was cut short ends",
        "coordinator/src/state/captures/mod.rs",
        "machine.is_some_and(|machine| machine.resume(now.mono_ns, &manifest))",
        "machine.is_some_and(|_| manifest.id.0.len() < usize::MAX)",
        None,
    ),
    (
        "steps are acknowledged when they are durable",
        "store/src/writer/thread.rs",
        "self.logged.push(done);",
        "done(Ok(()));",
        None,
    ),
    (
        "an agent alone takes one capture of one death",
        "agent/src/capture/agent_initiated.rs",
        "        if is_recent {",
        "        if is_recent && now.mono_ns == 0 {",
        None,
    ),
    (
        "records are acknowledged when they are synced",
        "store/src/journal.rs",
        "self.note(changes).and_then(|()| self.frames.sync())",
        "self.note(changes)",
        None,
    ),
    (
        "a new stream begins at what was acknowledged",
        "agent/src/link/deliveries.rs",
        "cursor.sent_step = cursor.acked_step;",
        "cursor.sent_step = cursor.sent_step.max(cursor.acked_step);",
        None,
    ),
    (
        "one incident for one cause",
        "core/src/incident/machine.rs",
        "open.find(|of| of.is_about(key))",
        "open.find(|of| of.is_about(key) && of.serial == u32::MAX)",
        None,
    ),
    (
        "a signal is no repeated checkpoint",
        "core/src/action/machine.rs",
        "self.outcome = Outcome::Running;\n        self.calls += 1;",
        "self.outcome = Outcome::Running;",
        "observe",
    ),
]


def changed(text, file, before, after):
    count = text.count(before)
    if count != 1:
        raise ValueError(f"{file} has the line that is to be changed {count} times, not once")
    return text.replace(before, after)


def copy_tree():
    """Copies what git tracks. Files that are the same are left alone: a second time builds little."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True)
    for name in listed.stdout.decode().split("\0"):
        source, target = ROOT / name, ASIDE / name
        if not name or not source.is_file():
            continue
        content = source.read_bytes()
        if not target.is_file() or target.read_bytes() != content:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)


def failures(stage, seeds):
    """Builds the simulation from the tree aside and runs it; how many seeds fail."""
    env = {
        **os.environ,
        "CARGO_TARGET_DIR": str(ASIDE / "target"),
        # What is unused because of a change is no finding.
        "RUSTFLAGS": "--cap-lints=allow",
        # Simulates three times as fast as a debug build, and is built in half the time of a release.
        "CARGO_PROFILE_DEV_OPT_LEVEL": "1",
        "CARGO_PROFILE_DEV_DEBUG": "0",
    }
    cargo = os.environ.get("CARGO", "cargo")
    build = [cargo, "build", "--quiet", "--locked", "-p", "memtape-sim"]
    if subprocess.run(build, cwd=ASIDE, env=env).returncode != 0:
        raise ValueError("it does not build")
    simulation = [str(ASIDE / "target/debug/memtape-sim"), "--json", "--seeds", str(seeds)]
    if stage:
        simulation += ["--stage", stage]
    done = subprocess.run(simulation, cwd=ROOT, capture_output=True)
    return json.loads(done.stdout)["figures"]["failures"]


def try_one(file, before, after, stage, seeds):
    path = ASIDE / file
    sound = path.read_text()
    path.write_text(changed(sound, file, before, after))
    try:
        return failures(stage, seeds)
    finally:
        path.write_text(sound)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    if options.check:
        for _, file, before, after, _ in MUTATIONS:
            assert changed((ROOT / file).read_text(), file, before, after) != before
        return
    copy_tree()
    failed = failures(None, options.seeds)
    if failed:
        sys.exit(f"{failed} of {options.seeds} seeds fail and nothing is broken")
    found = 0
    for rule, file, before, after, stage in MUTATIONS:
        seeds = -(-options.seeds // SEEDS_OF_A_STAGE) if stage else options.seeds
        try:
            count = try_one(file, before, after, stage, seeds)
            what = f"{count:>5} of {seeds} seeds fail"
        except ValueError as error:
            count, what = 0, str(error)
        found += count > 0
        print(f"{'ok    ' if count else 'MISSED'} {what}: {rule}", file=sys.stderr, flush=True)
    figures = {"mutations": len(MUTATIONS), "found": found, "seeds": options.seeds}
    print(json.dumps({"figures": figures}))
    sys.exit(found != len(MUTATIONS))


if __name__ == "__main__":
    main()
