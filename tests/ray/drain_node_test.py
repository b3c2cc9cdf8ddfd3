"""Tests of deploy/ray/drain_node.py: `Rules` with a stand-in of Ray, `RealRay` beside
tests/ray/cluster. Run by tests/scenarios/cluster/ray.rs."""

import os
import pathlib
import signal
import socket
import subprocess
import sys
import unittest

PROGRAM = pathlib.Path(__file__).parents[2] / "deploy/ray/drain_node.py"
sys.path.insert(0, str(PROGRAM.parent))

import drain_node
from drain_node import Node, Refused, Uncertain


class StandIn:
    """A cluster with the nodes that tests/ray/cluster starts, all on one host."""

    def __init__(self, answer="drains"):
        self.answer, self.asked = answer, []
        names = ["head", "busy", "driver", "1", "2", "3"]
        self.known = [self.node(f"memtape-{name}", "host-1") for name in names]
        self.known[0].is_head = True

    def node(self, name, host, state="alive", reason=""):
        self.next_id = getattr(self, "next_id", 0) + 1
        return Node(self.next_id, name, host, False, state, reason)

    def add(self, *args):
        self.known.append(self.node(*args))

    def end(self, name, state, reason):
        [node] = [node for node in self.known if node.name == name]
        node.state, node.reason = state, reason

    def nodes(self):
        if self.answer == "is gone" and self.asked:
            raise OSError("Socket closed")
        return self.known

    def drivers(self):
        return {node.id for node in self.known if node.name == "memtape-driver"}

    def drain(self, id, reason):
        [node] = [node for node in self.known if node.id == id]
        if node.name == "memtape-busy":
            return False, "no longer idle"
        self.asked.append(reason)
        if self.answer == "breaks":
            raise OSError("Socket closed")
        if self.answer == "keeps draining":
            node.state = "draining"
        elif self.answer != "goes on":
            node.state, node.reason = "drained", reason
        if self.answer == "loses its answer":
            raise OSError("Socket closed")
        return True, ""


class Rules(unittest.TestCase):
    def setUp(self):
        drain_node.CHECK_SECONDS = 0

    def refused(self, gcs, node, action, why):
        with self.assertRaisesRegex(Refused, why):
            drain_node.drain(gcs, node, action)

    def test_a_node_is_drained_only_where_it_is_idle(self):
        gcs = StandIn()
        for node, why in [
            ("unknown-node", "has no node unknown-node that is alive"),
            ("", "has no node  that is alive"),
            ("host-1", "6 nodes of Ray have the name or the host name"),
            ("memtape-head", "is the head of the Ray cluster"),
            ("memtape-driver", "the driver of a job runs"),
            ("memtape-busy", "runs something, so Ray did not drain it: no longer idle"),
        ]:
            self.refused(gcs, node, "out-0000001", why)
        self.assertEqual(gcs.asked, [])
        drain_node.drain(gcs, "memtape-1", "out-0000001")
        # The same decision again: it is done.
        drain_node.drain(gcs, "memtape-1", "out-0000001")
        self.refused(gcs, "memtape-1", "out-0000002", "has no node memtape-1 that is alive")
        drain_node.drain(gcs, "memtape-2", "out-0000002")
        self.refused(gcs, "memtape-3", "out-0000003", "2 nodes are kept out already, and at most 2")
        reasons = [f"memtape out-000000{n}: GPU memory was not given back" for n in (1, 2)]
        self.assertEqual(gcs.asked, reasons)

    def test_a_node_that_drains_or_has_ended_is_left_alone(self):
        gcs = StandIn()
        gcs.add("gpu-1", "host-2", "draining")
        gcs.add("10.0.0.3", "gpu-2")
        gcs.add("10.0.0.4", "gpu-3")
        gcs.add("10.0.0.4", "gpu-3")
        gcs.end("memtape-1", "dead", "health check failed")
        for node, why in [
            ("gpu-1", "node gpu-1 drains already"),
            ("memtape-1", "has no node memtape-1 that is alive"),
            ("gpu-3", "2 nodes of Ray have the name or the host name gpu-3; give"),
        ]:
            self.refused(gcs, node, "out-0000001", why)
        self.assertEqual(gcs.asked, [])
        # By the name of its host. The one that drains counts, for Ray does not say for what.
        drain_node.drain(gcs, "gpu-2", "out-0000001")
        self.refused(gcs, "memtape-2", "out-0000002", "2 nodes are kept out already")

    def test_a_node_that_was_started_again_is_in_use(self):
        gcs = StandIn()
        gcs.end("memtape-1", "drained", "memtape out-0000001: GPU memory")
        gcs.end("memtape-2", "drained", "memtape out-0000001: GPU memory")
        # Drained by another.
        gcs.end("memtape-3", "drained", "Termination of node that's idle")
        gcs.add("memtape-3", "host-1")
        self.refused(gcs, "memtape-3", "out-0000003", "2 nodes are kept out already")
        gcs.add("memtape-1", "host-1")
        drain_node.drain(gcs, "memtape-1", "out-0000003")

    def test_a_drain_whose_answer_is_lost_is_no_refusal(self):
        for answer, why in [
            ("loses its answer", None),
            ("keeps draining", None),
            ("breaks", "Ray's DrainNode failed: Socket closed"),
            ("is gone", "it is not known whether node memtape-1 is drained: Socket closed"),
            ("goes on", "node memtape-1 is in use as before"),
        ]:
            with self.subTest(answer):
                gcs = StandIn(answer)
                if why is None:
                    drain_node.drain(gcs, "memtape-1", "out-0000001")
                else:
                    with self.assertRaisesRegex(Uncertain, why):
                        drain_node.drain(gcs, "memtape-1", "out-0000001")

    def test_only_a_reason_of_a_decision_has_one(self):
        for reason, decision in [
            ("memtape out-0000001: GPU memory was not given back", "out-0000001"),
            ("memtape-admin: replace the fan", None),
            ("memtape: GPU memory was not given back", None),
            ("memtape by hand: replace the fan", None),
            ("memtape out-0000001", None),
            ("", None),
        ]:
            self.assertEqual(Node(1, "", "", state="drained", reason=reason).decision(), decision)

    def test_the_end_of_the_program_says_what_was_done(self):
        for error, expected in [
            ("", 0),
            ("raise Refused('no')", 1),
            ("raise OSError('no')", 1),
            ("raise Uncertain('no')", -signal.SIGTERM),
        ]:
            script = f"import sys; sys.path.insert(0, {str(PROGRAM.parent)!r})\n"
            script += "import drain_node\nfrom drain_node import Refused, Uncertain\n"
            script += f"def drain(gcs, name, action):\n    {error or 'pass'}\n"
            script += "drain_node.drain, drain_node.Gcs = drain, str\n"
            script += "sys.argv = ['drain_node', 'head:6379']\ndrain_node.main()\n"
            env = {**os.environ, "MEMTAPE_NODE": "a", "MEMTAPE_ACTION": "out-0000001"}
            done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True)
            self.assertEqual(done.returncode, expected, done)
            self.assertEqual(len(done.stderr.splitlines()), int(expected != 0), done)


class RealRay(unittest.TestCase):
    def run_program(self, node, action, **env):
        env = {**os.environ, "MEMTAPE_NODE": node, "MEMTAPE_ACTION": action, **env}
        command = ["python3", str(PROGRAM), env["MEMTAPE_TEST_RAY"]]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
        return done.returncode, done.stderr

    def refused(self, node, action, why, **env):
        status, said = self.run_program(node, action, **env)
        self.assertEqual(status, 1, said)
        line = said.splitlines()[-1]
        self.assertIn(why, line)
        self.assertTrue(line.endswith(": nothing was done") or len(line) == 400, line)

    def test_idle_nodes_are_drained_once(self):
        wrong = "another-token-with-32-letters-or-more"
        why = "Authentication token is missing or incorrect"
        self.refused("memtape-1", "out-0000001", why, RAY_AUTH_TOKEN=wrong)
        for node, why in [
            ("unknown-node", "has no node unknown-node that is alive"),
            (socket.gethostname(), "6 nodes of Ray have the name or the host name"),
            ("memtape-head", "is the head of the Ray cluster"),
            ("memtape-driver", "the driver of a job runs"),
            ("memtape-busy", "did not drain it: The node to be idle terminated is no longer idle"),
        ]:
            self.refused(node, "out-0000001", why)
        self.assertEqual(self.run_program("memtape-1", "out-0000001")[0], 0)
        self.assertEqual(self.run_program("memtape-1", "out-0000001")[0], 0)
        self.refused("memtape-1", "out-0000002", "has no node memtape-1 that is alive")
        self.assertEqual(self.run_program("memtape-2", "out-0000002")[0], 0)
        self.refused("memtape-3", "out-0000003", "2 nodes are kept out already, and at most 2")


if __name__ == "__main__":
    unittest.main()
