"""The hooks against the real libraries of many releases of PyTorch:
`compat.py MEMTAPE LIBRARY [VERSION…]`, run by `cargo xtask compat`.

Of each wheel only libc10.so and libc10_cuda.so are fetched (2 MB), because all that the recorder
touches is in them. drive.py drives the real allocator on a runtime without a GPU, twice: as by
default, and with MEMTAPE_DETAIL=1. Then the *tapes* are read, by `memtape export` and `memtape tape`,
and compared with what the program asked for: neither the program nor the recorder is taken at its
word. What cannot work must say so on the tape.

What must be on a tape follows from the requests by the allocator's own rules: blocks are multiples of
512 bytes, small ones come from segments of 2 MiB, large ones of 20 MiB, and a request that cannot be
met first gives back every segment that is free.

Not covered: what needs all of PyTorch (steps, expandable segments, autograd), which the tests try on
one version; builds other than the wheels of the package index.

Prints one JSON object: the figures, each version's findings, and a table.
"""

import json
import os
import pathlib
import pickle
import re
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).parent
FOLDER = HERE.parents[1] / "target/compat"
PYTHON = "python3.11"  # the newest that torch 2.0 has wheels for
VERSIONS = ["2.0.1", "2.2.2", "2.4.1", "2.6.0", "2.8.0", "2.10.0", "2.11.0", "newest"]
FINDINGS = ["hook 1", "hook 2", "stacks", "segments"]

FIRST_WITH_TRACKER = (2, 2)
DEVICE_BYTES = 1 << 30  # cudart.c's device
SMALL_SEGMENT, LARGE_SEGMENT = 2 << 20, 20 << 20
SMALL_BLOCK_MAX = 1 << 20


# --- a release and its runs ---------------------------------------------------------------------


def output(*command, **options):
    """Standard output of a program that must succeed."""
    done = subprocess.run([str(word) for word in command], capture_output=True, **options)
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]}: {done.returncode}\n{done.stderr.decode()}")
    return done.stdout


def runtime_of(library):
    """File name of the CUDA runtime that a library is linked against."""
    return re.search(r"\(NEEDED\).*\[(libcudart\.so.*)\]", output("readelf", "-dW", library).decode())[1]


def build(folder):
    """Makes the runtime of a release and what the driver needs besides; the runtime's file name."""
    library = folder / "libc10_cuda.so"
    runtime = runtime_of(library)
    # The name of the library is the version of its symbols, too.
    (folder / "cudart.map").write_text(f"{runtime} {{ global: *; }};\n")
    undefined = output("nm", "-D", "--undefined-only", library).decode().split()
    names = sorted({name.partition("@")[0] for name in undefined if name.startswith("cuda")})
    refusal = "__attribute__((weak)) int {}(void) {{ return 801; /* not supported */ }}\n"
    (folder / "refusals.c").write_text("".join(refusal.format(name) for name in names))
    flags = ["-O1", "-Wall", "-Wextra", "-shared", "-fPIC", "-o"]
    output("gcc", *flags, folder / runtime, HERE / "cudart.c", folder / "refusals.c",
           f"-Wl,-soname,{runtime}", f"-Wl,--version-script={folder / 'cudart.map'}")  # fmt: skip
    output("g++", *flags, folder / "libdriver.so", HERE / "driver.cpp")
    return runtime


class Run:
    """What one run asked for, and what its tape says: as PyTorch's snapshot, and as JSON."""

    def __init__(self, requests, snapshot, tape, at_oom):
        self.requests, self.snapshot, self.tape = requests, snapshot, tape
        [self.device] = tape["devices"]
        [self.trace] = snapshot["device_traces"]
        self.unknown = snapshot["memtape"]["unknown"]
        [self.about] = snapshot["memtape"]["devices"].values()
        self.oom_bytes = sum(stack["bytes"] for stack in at_oom["devices"][0]["stacks"])


def drive(folder, memtape, library, detail):
    """Runs the program under the recorder and reads the tape."""
    tapes = folder / "tapes"
    shutil.rmtree(tapes, ignore_errors=True)
    env = {name: value for name, value in os.environ.items() if not name.startswith("MEMTAPE_")}
    env |= {"LD_PRELOAD": library, "MEMTAPE_DIR": str(tapes), "MEMTAPE_DETAIL": str(int(detail))}
    requests = json.loads(output(PYTHON, HERE / "drive.py", folder, env=env))
    [tape] = tapes.iterdir()
    snapshot = pickle.loads(output(memtape, "export", tape, "-o", "-"))
    shown = [json.loads(output(memtape, "tape", tape, "--json", *at)) for at in ([], ["--oom"])]
    return Run(requests, snapshot, *shown)


# --- what must be on the tape -------------------------------------------------------------------


def rounded(size):
    return (size + 511) // 512 * 512


def segment_bytes(size):
    return SMALL_SEGMENT if size <= SMALL_BLOCK_MAX else LARGE_SEGMENT


def kept(requests):
    """Requests whose blocks are never taken back. They are small, and lie in the first segment."""
    freed = {one["address"] for one in requests if one["what"] in ("free", "defer")}
    return [one for one in requests if one["what"] == "alloc" and one["address"] not in freed]


def traced(requests):
    """The allocator, as far as the program makes use of it: the first block of a kind lies at the
    start of a new segment, and all later ones in that segment. Gives everything that the tracker must
    report: action, address, size as asked for, and the stream; of a failed request its size and the
    device's free bytes."""
    segments, live, waiting, events = [], [], [], []

    def note(action, of, size):
        events.append((action, of["address"], size, of["stream"]))

    def return_segments():
        for segment in list(segments):
            inside = range(segment["address"], segment["address"] + segment_bytes(segment["size"]))
            if not any(block["address"] in inside for block in live):
                segments.remove(segment)
                note("segment_free", segment, segment_bytes(segment["size"]))

    for request in requests:
        what, size = request["what"], request["size"]
        if what == "alloc":
            kinds = [(segment["stream"], segment_bytes(segment["size"])) for segment in segments]
            if (request["stream"], segment_bytes(size)) not in kinds:
                segments.append(request)
                note("segment_alloc", request, segment_bytes(size))
            live.append(request)
            note("alloc", request, size)
        elif what == "oom":
            # The other streams have come to an end, and what is wholly free goes back.
            for done in waiting:
                note("free_completed", done, done["size"])
            waiting = []
            return_segments()
            held = sum(segment_bytes(segment["size"]) for segment in segments)
            events.append(("oom", None, size, DEVICE_BYTES - held))
        else:
            live = [block for block in live if block["address"] != request["address"]]
            note("free_requested", request, size)
            if what == "free":
                note("free_completed", request, size)
            else:
                waiting.append(request)
    return_segments()
    return events


def reported(requests):
    """The same as PyTorch's reports have it: sizes are rounded, and a deferred free is a free."""
    events = []
    for action, address, size, _ in traced(requests):
        if action in ("alloc", "free_requested", "oom"):
            events.append((action, address, rounded(size)))
        if action == "free_requested":
            events.append(("free_completed", address, rounded(size)))
    return events


def held_at_last_report(requests):
    """Bytes held when the last block or failure was reported: totals come with those."""
    held = known = 0
    for action, _, size, _ in traced(requests):
        if action.startswith("segment"):
            held += size if action == "segment_alloc" else -size
        else:
            known = held
    return known


# --- what is on it ------------------------------------------------------------------------------


def same(what, found, expected):
    if found != expected:
        raise AssertionError(f"{what}: the tape says {found}, it was {expected}")


def blocks_of(run):
    """Live blocks, those with a pending free included."""
    blocks = [block for segment in run.snapshot["segments"] for block in segment["blocks"]]
    return [block for block in blocks if block["state"] != "inactive"]


def segments_left(run):
    """One small segment: that of the first block."""
    found = [(segment["address"], segment["total_size"]) for segment in run.snapshot["segments"]]
    same("segments that are left", found, [(run.requests[0]["address"], SMALL_SEGMENT)])


def events_of(run, is_wanted):
    """Events with the fields that both ways of recording have."""
    wanted = (event for event in run.trace if is_wanted(event["action"]))
    return [(event["action"], event.get("addr"), event["size"]) for event in wanted]


def hook_1(run):
    """PyTorch's reports: blocks, totals, failed requests."""
    found = events_of(run, lambda action: not action.startswith("segment"))
    same("events", found, reported(run.requests))
    left = [(one["address"], rounded(one["size"])) for one in kept(run.requests)]
    same("blocks that are left", [(one["address"], one["size"]) for one in blocks_of(run)], left)
    same("bytes handed out", run.device["allocated"], sum(size for _, size in left))
    same("bytes held", run.device["reserved"], held_at_last_report(run.requests))
    at = next(at for at, one in enumerate(run.requests) if one["what"] == "oom")
    freed = {one["address"] for one in run.requests[:at] if one["what"] in ("free", "defer")}
    live = (one for one in run.requests[:at] if one["what"] == "alloc" and one["address"] not in freed)
    same("bytes at the failure", run.oom_bytes, sum(rounded(one["size"]) for one in live))
    same("events lost", run.tape["lost"], 0)
    same("stopped because of", run.tape["disabled"], None)


def hook_2(run):
    """The trace tracker: requested sizes, streams, deferred frees, segments."""
    if "requested_size" in run.unknown:
        reasons = [line for line in run.tape["limitations"] if line.startswith("no detail: ")]
        why = reasons[0].removeprefix("no detail: ") if reasons else None
        raise AssertionError(f"unavailable: {why}" if why else "not attached, and the tape does not say why")
    found = [
        (event["action"], event.get("addr"), event["size"], event.get("device_free", event["stream"]))
        for event in run.trace
    ]
    expected = traced(run.requests)
    for at in range(max(len(found), len(expected))):
        same(f"event {at} of {len(expected)}", found[at : at + 1], expected[at : at + 1])
    same("bytes held", run.device["reserved"], held_at_last_report(run.requests))
    same("segments made up", run.about["segments_made_up"], False)
    segments_left(run)
    left = [(one["requested_size"], one["state"]) for one in blocks_of(run)]
    same("blocks that are left", left, [(one["size"], "active_allocated") for one in kept(run.requests)])
    pools = {segment["segment_pool_id"] for segment in run.snapshot["segments"]}
    same("pools", pools, {(0, 0)})


def stacks(run):
    """Python stacks of blocks and failed requests."""
    frames = [(event["frames"] or [{}])[0] for event in run.trace if event["action"] in ("alloc", "oom")]
    found = [
        (pathlib.Path(frame.get("filename", "")).name, frame.get("line"), frame.get("name"))
        for frame in frames
    ]
    asked = [one for one in run.requests if one["what"] in ("alloc", "oom")]
    same("innermost frames", found, [("drive.py", one["line"], "main") for one in asked])


def segments(run):
    """The CUDA runtime: segments, without the tracker."""
    same("segments made up", run.about["segments_made_up"], True)
    segments_left(run)
    expected = [event[:3] for event in traced(run.requests) if event[0].startswith("segment")]
    same("segments", events_of(run, lambda action: action.startswith("segment")), expected)
    ooms = sum(one["what"] == "oom" for one in run.requests)
    same("a failed cudaMalloc for each failed request", run.device["malloc_failures"] >= ooms, True)


def judge(torch, plain, detailed):
    """What the runs with one release showed: for each finding True, or why not."""
    found = {}
    for name, check, run in zip(
        FINDINGS, [hook_1, hook_2, stacks, segments], [plain, detailed, plain, plain]
    ):
        try:
            check(run)
            found[name] = True
        except (AssertionError, IndexError, KeyError) as error:
            found[name] = str(error) or repr(error)
    found["pools"] = "segment_pool_id" not in detailed.unknown
    expects_tracker = tuple(int(number) for number in torch.split(".")[:2]) >= FIRST_WITH_TRACKER
    # A release without a tracker says why it has none.
    is_expected = found["hook 2"] is True if expects_tracker else "unavailable" in str(found["hook 2"])
    found["ok"] = is_expected and all(found[name] is True for name in FINDINGS if name != "hook 2")
    return found


# --- all of it ----------------------------------------------------------------------------------


def try_one(version, memtape, library):
    torch = json.loads(output(PYTHON, HERE / "fetch.py", version, FOLDER))["torch"]
    folder = FOLDER / torch
    runtime = build(folder)
    plain, detailed = (drive(folder, memtape, library, detail) for detail in (False, True))
    return {"torch": torch, "runtime": runtime} | judge(torch, plain, detailed)


def table(rows):
    """A row for each release, and a line for each thing that is not there."""
    columns = ["torch", "runtime", "hook 1", "hook 2", "pools", "stacks", "segments"]
    words = {True: "yes", False: "no"}
    lines = [columns]
    for row in rows:
        lines.append([row["torch"], row["runtime"]] + [words[row[name] is True] for name in columns[2:]])
    text = "".join(" ".join(f"{cell:>18}" for cell in line) + "\n" for line in lines)
    for row in rows:
        why = (f"torch {row['torch']}, {name}: {row[name]}\n" for name in FINDINGS if row[name] is not True)
        text += "".join(why)
    return text


def main():
    memtape, library, *versions = sys.argv[1:]
    rows, failures = [], []
    for version in versions or VERSIONS:
        print(f"torch {version} …", file=sys.stderr, flush=True)
        try:
            rows.append(try_one(version, memtape, library))
        except Exception as error:
            failures.append({"torch": version, "error": f"{type(error).__name__}: {error}"})
    text = table(rows) + "".join(f"torch {one['torch']}: {one['error']}\n" for one in failures)
    figures = {name: sum(row[name] is True for row in rows) for name in [*FINDINGS, "ok"]}
    figures["versions"] = len(rows) + len(failures)
    ok = not failures and all(row["ok"] for row in rows)
    print(json.dumps({"ok": ok, "figures": figures, "versions": rows + failures, "text": text}))
    sys.exit(not ok)


if __name__ == "__main__":
    main()
