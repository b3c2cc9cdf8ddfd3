#!/usr/bin/env python3
"""Drains a node of Ray whose GPU memory was not given back: drain_node.py HEAD:PORT

A command for `memtape coordinator --keep-out-command`, which sets MEMTAPE_NODE and MEMTAPE_ACTION.
It needs the package `ray` in the version of the cluster.

Exactly one node is drained. It is alive, it is not the head, no driver of a job runs on it, and its
name or host name is the one that the agent has proved. Ray is asked for the drain of an idle node,
which a node refuses that runs anything. For the other reason, preemption, no node refuses, and Ray
Train restarts each job that has a rank on the node, although it is in no trouble.

A drained node ends. Ray keeps the reason, which has the id of the decision. This program starts no
node again. It ends with status 0 when the node is drained, with status 1 when nothing was done, and
by SIGTERM when a drain may have been done; then the standard error says why, in one line.
"""

import os
import signal
import sys
import time

# `NODES_KEPT_OUT_MAX` of core/src/limits: a wrong finding must not empty a cluster.
NODES_KEPT_OUT_MAX = 2

# Seconds for each request to Ray.
REQUEST_SECONDS_MAX = 5

# Checks of a node that was drained, and seconds after each: it ends by itself.
CHECKS_MAX = 10
CHECK_SECONDS = 0.3


class Refused(Exception):
    """Nothing was done."""


class Uncertain(Exception):
    """A drain may have been done."""


class Node:
    """A raylet from its start to its end. No other raylet ever has its id."""

    def __init__(self, id, name, host, is_head=False, state="alive", reason=""):
        self.id, self.name, self.host, self.is_head = id, name, host, is_head
        # "alive", "draining", "drained" (it has ended, for this reason) or "dead".
        self.state, self.reason = state, reason

    def is_alive(self):
        return self.state in ("alive", "draining")

    def has_name(self, name):
        return name != "" and name in (self.name, self.host)

    def decision(self):
        """The id of the decision by which the node was drained, once it has ended."""
        begin, action, rest = ([*self.reason.split(" ", 2), "", ""])[:3]
        is_ours = begin == "memtape" and action.endswith(":") and rest != ""
        return action[:-1] if is_ours and self.state == "drained" else None


class Gcs:
    """The Global Control Service of a Ray cluster."""

    def __init__(self, address):
        from ray._raylet import GcsClient

        self.client = GcsClient(address=address)

    def nodes(self):
        """All nodes that the cluster remembers."""
        found = self.client.get_all_node_info(timeout=REQUEST_SECONDS_MAX)
        return [_node(node) for node in found.values()]

    def drivers(self):
        """The ids of the nodes on which drivers of jobs run."""
        jobs = self.client.get_all_job_info(
            skip_submission_job_info_field=True,
            skip_is_running_tasks_field=True,
            timeout=REQUEST_SECONDS_MAX,
        )
        return {job.driver_address.node_id for job in jobs.values() if not job.is_dead}

    def drain(self, id, reason):
        """Drains a node if it runs nothing; whether it does, and Ray's words if not."""
        from ray.core.generated.autoscaler_pb2 import DRAIN_NODE_REASON_IDLE_TERMINATION as IDLE

        is_accepted, words = self.client.drain_node(
            id.hex(), IDLE, reason, 0, timeout=REQUEST_SECONDS_MAX
        )
        return is_accepted, words


def _node(node):
    """A node from Ray's message."""
    from ray.core.generated.common_pb2 import NodeDeathInfo
    from ray.core.generated.gcs_pb2 import GcsNodeInfo, NodeSnapshot

    drained = (NodeDeathInfo.AUTOSCALER_DRAIN_IDLE, NodeDeathInfo.AUTOSCALER_DRAIN_PREEMPTED)
    state = "alive"
    if node.state == GcsNodeInfo.DEAD:
        state = "drained" if node.death_info.reason in drained else "dead"
    elif node.state_snapshot.state == NodeSnapshot.DRAINING:
        state = "draining"
    reason = node.death_info.reason_message
    host = node.node_manager_hostname
    return Node(node.node_id, node.node_name, host, node.is_head_node, state, reason)


def find(nodes, name):
    """The one node that may be drained."""
    found = [node for node in nodes if node.is_alive() and node.has_name(name)]
    if not found:
        raise Refused(f"Ray has no node {name} that is alive")
    if len(found) > 1:
        raise Refused(
            f"{len(found)} nodes of Ray have the name or the host name {name}; give each a name of "
            "its own with ray start --node-name"
        )
    [node] = found
    if node.is_head:
        raise Refused(f"node {name} is the head of the Ray cluster, which would end with it")
    if node.state == "draining":
        raise Refused(f"node {name} drains already")
    return node


def kept_out(nodes):
    """The number of nodes that drain, for any reason, because Ray does not say for which, and of
    those that Memtape has drained and that were not started again."""
    alive = {(node.host, node.name) for node in nodes if node.is_alive()}
    ended = {(node.host, node.name) for node in nodes if node.decision()}
    return sum(node.state == "draining" for node in nodes) + len(ended - alive)


def is_out(nodes, action):
    return any(node.decision() == action for node in nodes)


def drain(gcs, name, action):
    """Drains the node of this name by this decision."""
    nodes = gcs.nodes()
    if is_out(nodes, action):
        return
    node = find(nodes, name)
    count = kept_out(nodes)
    if count >= NODES_KEPT_OUT_MAX:
        raise Refused(
            f"{count} nodes are kept out already, and at most {NODES_KEPT_OUT_MAX} may be"
        )
    if node.id in gcs.drivers():
        raise Refused(f"on node {name} the driver of a job runs, whose actors end with it")
    try:
        is_accepted, words = gcs.drain(
            node.id, f"memtape {action}: GPU memory was not given back"
        )
    except Exception as error:
        # The answer is lost: the node says what came of the request.
        if is_out(gcs.nodes(), action):
            return
        raise Uncertain(f"Ray's DrainNode failed: {error}") from error
    if not is_accepted:
        raise Refused(f"node {name} runs something, so Ray did not drain it: {words}")
    for _ in range(CHECKS_MAX):
        try:
            nodes = gcs.nodes()
        except Exception as error:
            raise Uncertain(f"it is not known whether node {name} is drained: {error}") from error
        if is_out(nodes, action):
            return
        time.sleep(CHECK_SECONDS)
    # A node that drains takes nothing new.
    if not any(now.id == node.id and now.state == "draining" for now in nodes):
        raise Uncertain(f"Ray took the request, but node {name} is in use as before")


def main():
    try:
        [address] = sys.argv[1:]
        name, action = os.environ["MEMTAPE_NODE"], os.environ["MEMTAPE_ACTION"]
    except (ValueError, KeyError):
        sys.exit(f"{__doc__.splitlines()[0]}, started by memtape coordinator --keep-out-command")
    try:
        drain(Gcs(address), name, action)
    except Uncertain as error:
        _say(f"{error}: it may have been done")
        # Another status would say that nothing was done.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)
    except Exception as error:
        _say(f"{error}: nothing was done")
        sys.exit(1)


def _say(text):
    line = next((line for line in text.splitlines() if line.strip()), "")
    print(line[:400], file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
