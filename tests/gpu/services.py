"""A coordinator and an agent on this machine, what they answer, and processes that are ended with their
children. It judges nothing."""

import json
import os
import pathlib
import signal
import socket
import subprocess
import time
import urllib.request


class Services:
    """A coordinator and an agent, with their output in the folder."""

    def __init__(self, binary, folder, tapes, *options):
        self.port = free_port()
        listen = f"127.0.0.1:{self.port}"
        self.processes = [
            start([binary, "coordinator", "--listen", listen, "--data-dir", folder / "data", *options],
                  folder / "coordinator.log"),
            start([binary, "agent", "--coordinator", f"http://{listen}", "--tape-dir", tapes,
                   "--spool-dir", folder / "spool", "--node", "this"], folder / "agent.log"),
        ]  # fmt: skip

    def get(self, path):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/api/v1{path}", timeout=10) as answer:
            return json.load(answer)

    def asked(self, path, default):
        """As `get`; `default` where there is no answer, as for a job that is not known."""
        try:
            return self.get(path)
        except OSError:
            return default

    def incidents(self, job):
        listed = self.asked(f"/incidents?job={job}", {})["incidents"] if self.knows(job) else []
        return sorted(listed, key=lambda incident: incident["opened_wall_ns"])

    def knows(self, job):
        return any(each["job"].split("@")[0] == job for each in self.asked("/jobs", {"jobs": []})["jobs"])

    def is_over(self, job):
        jobs = self.asked("/jobs", {"jobs": []})["jobs"]
        return any(each["job"].split("@")[0] == job and each["state"] == "ended" for each in jobs)

    def end(self):
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def start(command, log):
    with open(log, "w") as output:
        return subprocess.Popen([str(part) for part in command], stdin=subprocess.DEVNULL, stdout=output,
                                stderr=subprocess.STDOUT)  # fmt: skip


def family(pid):
    """This process, its children and theirs. torchrun's ranks have sessions of their own, so no group of
    processes holds them all."""
    children = {}
    for entry in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = entry.read_text().rpartition(")")[2].split()[1]
        except OSError:
            continue  # it has just ended
        children.setdefault(int(parent), []).append(int(entry.parent.name))
    found = [pid]
    for each in found:
        found += children.get(each, [])
    return found


def end(job):
    """Ends a job that hangs, with all its ranks."""
    for pid in family(job.pid):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    job.wait()


def wait_for(ask, patience_s):
    deadline = time.monotonic() + patience_s
    while not (answer := ask()) and time.monotonic() < deadline:
        time.sleep(0.25)
    return answer
