"""How true the time left is that the demo's own incidents state.

    python3 tests/bench/forecast.py --memtape target/release/memtape [--scenario leak oom] [--seconds 150]

Runs `memtape demo` with each scenario, and reads the API as a page does, every 1.5 s: of each open
incident that states when memory ends, the steps that are left (P10, middle, P90) and the newest step of
its rank. The truth is the last step that the rank finished before its request failed or its process
ended. Prints each sample, then how many intervals held the truth, which were too early and too late,
and the error of the middle at half of the life that was left at the first sample.
"""

import argparse
import json
import pathlib
import signal
import subprocess
import time
import urllib.error
import urllib.request

EVERY_SECONDS = 1.5


def ask(url):
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return json.load(answer)
    except (urllib.error.URLError, OSError, ValueError):
        return None


def sampled(memtape, scenario, seconds, port):
    """(samples, last steps by rank): of a demo that runs until its time is up."""
    command = [memtape, "demo", "--scenario", scenario, "--port", str(port), "--color", "never"]
    demo = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    base, samples, ends = f"http://127.0.0.1:{port}/api/v1", [], {}
    until = time.monotonic() + seconds
    try:
        while time.monotonic() < until and demo.poll() is None:
            time.sleep(EVERY_SECONDS)
            incidents = (ask(f"{base}/incidents") or {}).get("incidents", [])
            jobs = (ask(f"{base}/jobs") or {}).get("jobs", [])
            steps = {}
            for job in jobs:
                name = urllib.request.quote(job["job"], safe="")
                ranks = (ask(f"{base}/jobs/{name}/ranks") or {}).get("ranks", [])
                steps.update({rank["rank"]: rank["step"] for rank in ranks if rank.get("step") is not None})
            ends.update({rank: max(step, ends.get(rank, 0)) for rank, step in steps.items()})
            for incident in incidents:
                left = [incident.get(f"steps_to_oom{of}") for of in ("_p10", "", "_p90")]
                if incident.get("state") == "open" and None not in left and incident.get("rank") in steps:
                    samples.append((steps[incident["rank"]], *left, incident["rank"], incident.get("class")))
            is_over = any(of.get("class") in ("out_of_memory", "died") for of in incidents)
            if is_over and samples:
                until = min(until, time.monotonic() + 4)
    finally:
        demo.send_signal(signal.SIGINT)
        demo.wait(30)
    return samples, ends


def shown(scenario, samples, ends):
    inside = early = late = 0
    half = None
    first = samples[0][0] if samples else 0
    for step, low, middle, high, rank, of in samples:
        true = ends[rank] - step
        where = "inside" if low <= true <= high else "early" if true > high else "late"
        inside, early, late = inside + (where == "inside"), early + (where == "early"), late + (where == "late")
        if half is None and true <= (ends[rank] - first) / 2 and true > 0:
            half = abs(middle - true) / true
        print(f"{scenario}: step {step}, {of}: {middle} ({low} to {high}), true {true}: {where}")
    error = "no figure" if half is None else f"{100 * half:.0f} %"
    print(
        f"{scenario}: {inside} of {len(samples)} inside P10 to P90, {early} end too early, {late} too late; "
        f"error at half life {error}\n"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--memtape", type=pathlib.Path, required=True)
    parser.add_argument("--scenario", nargs="+", default=["leak", "oom", "fragmentation", "host", "imbalance"])
    parser.add_argument("--seconds", type=float, default=150, help="at most, for each")
    parser.add_argument("--port", type=int, default=7871)
    options = parser.parse_args()
    for scenario in options.scenario:
        shown(scenario, *sampled(options.memtape, scenario, options.seconds, options.port))


if __name__ == "__main__":
    main()
