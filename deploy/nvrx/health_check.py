#!/usr/bin/env python3
"""Answers the node health check of NVIDIA Resiliency Extension: health_check.py --socket PATH

`ft_launcher --ft-node-health-check-endpoint PATH` asks before each rendezvous, and a node that fails
does not join. The answer is that of Memtape's agent on this node (`memtape agent --health-listen`,
`/node-check`): is memory of a GPU held that was not given back? What is not known lets the node join,
and the answer says so. It has UUIDs of GPUs and bytes, no names of jobs. This program ends no process
and resets no GPU.

It needs the package `nvidia-resiliency-ext`, whose messages and gRPC it uses.
"""

import argparse
import json
import os
import signal
import socket
import stat
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor

# Seconds for an answer: the agent decides within 45 s, and NVRx waits for 60 s.
ANSWER_SECONDS_MAX = 50

# Seconds for one request to the agent, and between two of one check.
REQUEST_SECONDS_MAX = 5
ASK_SECONDS = 0.25

# Checks that wait at the same time, bytes of a request, and milliseconds of a connection.
CHECKS_MAX = 64
REQUEST_BYTES_MAX = 4096
CONNECTION_MS_MAX = 60_000

# Bits of a folder's mode by which others than its owner make files in it.
WRITABLE_BY_OTHERS = 0o022


def ask(agent, seconds=ANSWER_SECONDS_MAX):
    """The verdict of the agent ("healthy", "failed" or "unknown") and what it knows of each GPU."""
    # No proxy: the agent is on this node.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    end = time.monotonic() + seconds
    asked, details = "", ["the agent does not answer in time: nothing is known"]
    while time.monotonic() < end:
        try:
            url = f"{agent}/node-check{asked}"
            with opener.open(url, timeout=REQUEST_SECONDS_MAX) as response:
                answer = json.load(response)
            asked, details = f"?asked_ns={answer['asked_ns']}", answer["details"]
            verdict = answer["verdict"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            return "unknown", [f"the agent at {agent} does not answer ({error}): nothing is known"]
        if verdict is not None:
            return verdict, details
        time.sleep(ASK_SECONDS)
    return "unknown", details


def output(verdict, details):
    """The JSON object that NVRx reads: a node whose `fail_count` is not 0 does not join."""
    failed = ["gpu_memory"] if verdict == "failed" else []
    fields = {"fail_count": len(failed), "failed_checks": failed}
    return json.dumps({**fields, "verdict": verdict, "details": details}, separators=(",", ":"))


def log(verdict, details, last=[None]):
    """Logs an answer whose verdict differs from the last one's."""
    if verdict != last[0]:
        means = {"healthy": "passes", "failed": "fails, and it does not join"}
        means = means.get(verdict, "passes without proof")
        print(f"the health check of this node {means}: {'; '.join(details)}", flush=True)
        last[0] = verdict


def clear(path):
    """Makes room for the socket: a file at its path is removed only when it is a socket behind which
    no server listens, in a folder in which no other user can make or replace it."""
    folders = {os.path.dirname(path), os.path.dirname(os.path.realpath(path))}
    for folder in list(folders):
        while folder != os.path.dirname(folder):
            folder = os.path.dirname(folder)
            folders.add(folder)
    own = {os.path.dirname(path), os.path.dirname(os.path.realpath(path))}
    for folder in sorted(folders):
        found = os.stat(folder)
        is_sticky = found.st_mode & stat.S_ISVTX and folder not in own
        is_open = found.st_mode & WRITABLE_BY_OTHERS and not is_sticky
        if is_open or found.st_uid not in (0, os.geteuid()):
            sys.exit(
                f"{path} could be replaced by other users, who own or can write {folder}: give "
                "--socket a path in a folder that only root or this user can write"
            )
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        sys.exit(f"{path} is there and is no socket: remove it, or give --socket another path")
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(2)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
        except OSError:
            pass  # It is busy, or of another type.
    sys.exit(f"another server listens on {path}: stop it, or give --socket another path")


def serve(path, agent):
    """Answers until the process ends. The file stays then: a launcher looks for it at its start
    alone."""
    import grpc
    from nvidia_resiliency_ext.shared_utils.proto import nvhcd_pb2

    # As NVRx does before it imports the next one.
    sys.modules.setdefault("nvhcd_pb2", nvhcd_pb2)
    from nvidia_resiliency_ext.shared_utils.proto import nvhcd_pb2_grpc

    class Service(nvhcd_pb2_grpc.HealthCheckServiceServicer):
        def RunHealthCheck(self, request, context):
            verdict, details = ask(agent)
            log(verdict, details)
            is_failed = verdict == "failed"
            return nvhcd_pb2.HealthCheckResponse(
                success=not is_failed, exit_code=int(is_failed), output=output(verdict, details)
            )

    server = grpc.server(
        ThreadPoolExecutor(CHECKS_MAX),
        maximum_concurrent_rpcs=CHECKS_MAX,
        options=[
            ("grpc.max_receive_message_length", REQUEST_BYTES_MAX),
            ("grpc.max_concurrent_streams", 1),
            ("grpc.max_connection_idle_ms", CONNECTION_MS_MAX),
            ("grpc.max_connection_age_ms", CONNECTION_MS_MAX),
            ("grpc.max_connection_age_grace_ms", CONNECTION_MS_MAX),
        ],
    )
    nvhcd_pb2_grpc.add_HealthCheckServiceServicer_to_server(Service(), server)
    clear(path)
    server.add_insecure_port(f"unix://{path}")
    # Each user of the node may ask: launchers run as the users who train.
    os.chmod(path, 0o666)
    server.start()
    print(f"answers health checks on {path}", flush=True)
    server.wait_for_termination()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--socket", required=True, help="the socket of the health check")
    parser.add_argument("--agent", default="http://127.0.0.1:7773", help="the agent's health port")
    options = parser.parse_args()
    # A server that ends in order would remove the file.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    serve(os.path.abspath(options.socket), options.agent.rstrip("/"))


if __name__ == "__main__":
    main()
