"""Tests of deploy/slurm/epilog.sh. As root they run in a pid namespace of their own, where no agent
is. Run by tests/scenarios/cluster/epilog.rs.
"""

import mmap
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest

EPILOG = pathlib.Path(__file__).parents[2] / "deploy/slurm/epilog.sh"
OTHER = 65534
AGENT = ["pgrep", "--uid", "0", "--full", "(^|/)memtape agent"]


class Epilog(unittest.TestCase):
    def setUp(self):
        if subprocess.run(AGENT, stdout=subprocess.DEVNULL).returncode == 0:
            self.skipTest("an agent of root runs here")
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def make(self, names):
        for name in names:
            pathlib.Path(self.folder.name, name).touch()

    def start(self, **become):
        agent = subprocess.Popen(["bash", "-c", "exec -a 'memtape agent' sleep 60"], **become)
        self.addCleanup(lambda: (agent.kill(), agent.wait()))
        time.sleep(0.5)

    def left(self):
        """The files that an epilog leaves, and the seconds that it took."""
        env = {**os.environ, "MEMTAPE_DIR": self.folder.name, "SLURM_JOB_UID": str(os.getuid())}
        begun = time.monotonic()
        subprocess.run(["bash", EPILOG], env=env, check=True)
        return sorted(os.listdir(self.folder.name)), time.monotonic() - begun

    def test_tapes_of_dead_processes_are_deleted_in_one_pass(self):
        odd = ["a b.tape", "$(id).tape", "x'\n].tape", "used.tape.tape", "sed.tape"]
        self.make(["used.tape", "notes.txt", *odd, *(f"{at}.tape" for at in range(20000))])
        with open(pathlib.Path(self.folder.name, "used.tape"), "r+b") as file:
            file.truncate(4096)
            mapped = mmap.mmap(file.fileno(), 4096)
        left, seconds = self.left()
        mapped.close()
        self.assertEqual(left, ["notes.txt", "used.tape"])
        self.assertLess(seconds, 20)

    def test_a_process_of_a_user_is_no_agent(self):
        self.make(["1.tape"])
        self.start(**({"user": OTHER} if os.getuid() == 0 else {}))
        self.assertEqual(self.left()[0], [])
        if os.getuid() == 0:
            self.make(["1.tape"])
            self.start()
            self.assertEqual(self.left()[0], ["1.tape"])


if __name__ == "__main__":
    if os.getuid() == 0 and "inside" not in sys.argv:
        own = ["unshare", "--mount", "--pid", "--fork", "--mount-proc", sys.executable]
        sys.exit(subprocess.run([*own, __file__, "inside"]).returncode)
    unittest.main(argv=sys.argv[:1])
