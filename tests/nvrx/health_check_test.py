"""Tests of deploy/nvrx/health_check.py without gRPC: the agent is a stand-in. Run by
tests/scenarios/cluster/nvrx.rs."""

import http.server
import json
import os
import pathlib
import socket
import sys
import tempfile
import threading
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "deploy/nvrx"))

import health_check


class Agent(http.server.BaseHTTPRequestHandler):
    """Gives the answers of the class, one after the other, the last one again."""

    answers, asked = [], []

    def do_GET(self):
        Agent.asked.append(self.path)
        answer = Agent.answers.pop(0) if len(Agent.answers) > 1 else Agent.answers[0]
        body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


class Checks(unittest.TestCase):
    def setUp(self):
        health_check.ASK_SECONDS = 0
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Agent)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def tearDown(self):
        self.server.shutdown()
        self.server.server_close()

    def ask(self, *answers, seconds=10):
        Agent.answers, Agent.asked = list(answers), []
        return health_check.ask(self.url, seconds)

    def test_the_agent_is_asked_until_it_has_a_verdict(self):
        waits = {"asked_ns": 7, "verdict": None, "details": ["GPU-a waits"]}
        failed = {"asked_ns": 7, "verdict": "failed", "details": ["GPU-a holds 5 GiB"]}
        self.assertEqual(self.ask(waits, waits, failed), ("failed", ["GPU-a holds 5 GiB"]))
        again = "/node-check?asked_ns=7"
        self.assertEqual(Agent.asked, ["/node-check", again, again])
        self.assertEqual(self.ask(waits, seconds=0.2), ("unknown", ["GPU-a waits"]))

    def test_what_is_no_answer_is_unknown(self):
        for answer in [b"", b"{}", b"[]", b"not JSON", b'{"asked_ns": 1}']:
            verdict, details = self.ask(answer)
            self.assertEqual(verdict, "unknown", answer)
            self.assertIn("does not answer", details[0])
        self.assertEqual(health_check.ask("http://127.0.0.1:1")[0], "unknown")

    def test_nvrx_reads_each_verdict_as_it_is_meant(self):
        for verdict, count in [("healthy", 0), ("failed", 1), ("unknown", 0)]:
            output = json.loads(health_check.output(verdict, ['a "quoted" line']))
            self.assertEqual(output["fail_count"], count)
            self.assertEqual(len(output["failed_checks"]), count)
            self.assertEqual((output["verdict"], output["details"]), (verdict, ['a "quoted" line']))


class Sockets(unittest.TestCase):
    def refused(self, path, why):
        with self.assertRaises(SystemExit) as refused:
            health_check.clear(str(path))
        self.assertIn(why, str(refused.exception))
        self.assertIn("--socket", str(refused.exception))

    def test_only_a_socket_without_a_server_is_replaced(self):
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            used = folder / "used.sock"
            with socket.socket(socket.AF_UNIX) as server:
                server.bind(str(used))
                server.listen()
                self.refused(used, "another server listens")
            self.assertTrue(used.exists())
            health_check.clear(str(used))
            self.assertFalse(used.exists(), "no server listens any more")
            file = folder / "file"
            file.write_text("precious")
            self.refused(file, "is no socket")
            for target in ["file", "absent"]:
                link = folder / f"to-{target}"
                link.symlink_to(folder / target)
                self.refused(link, "is no socket")
                self.assertTrue(link.is_symlink())
            self.assertEqual(file.read_text(), "precious")

    def test_a_folder_of_others_is_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            open_to_all = pathlib.Path(folder) / "open"
            open_to_all.mkdir()
            # In a sticky folder, as /tmp is, another user can make it first.
            for mode in [0o777, 0o1777, 0o775]:
                os.chmod(open_to_all, mode)
                self.refused(open_to_all / "health.sock", "could be replaced by other users")


if __name__ == "__main__":
    unittest.main()
