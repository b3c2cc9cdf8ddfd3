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

    def left(self, folder=None, **env):
        """The files that an epilog leaves, and the seconds that it took."""
        folder = folder or self.folder.name
        env = {**os.environ, "MEMTAPE_DIR": folder, "SLURM_JOB_UID": str(os.getuid()), **env}
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

    @unittest.skipIf(os.getuid(), "only root can give a folder away")
    def test_a_folder_of_another_user_and_a_link_are_left_alone(self):
        self.make(["1.tape"])
        link = self.folder.name + ".link"
        os.symlink(self.folder.name, link)
        self.addCleanup(os.remove, link)
        self.assertEqual(self.left(link)[0], ["1.tape"])
        os.chown(self.folder.name, OTHER, OTHER)
        self.assertEqual(self.left()[0], ["1.tape"])
        os.chown(self.folder.name, 0, 0)
        self.assertEqual(self.left()[0], [])

    @unittest.skipIf(os.getuid(), "as root")
    def test_a_folder_that_is_replaced_meanwhile_costs_no_other_user_a_tape(self):
        """While the epilog looks at the maps, a link takes the place of the folder."""
        self.make(["1.tape"])
        moved, victim = self.folder.name + ".moved", tempfile.TemporaryDirectory()
        self.addCleanup(victim.cleanup)
        kept = pathlib.Path(victim.name, "1.tape")
        kept.touch()
        tools = tempfile.TemporaryDirectory()
        self.addCleanup(tools.cleanup)
        grep = pathlib.Path(tools.name, "grep")
        swap = f"mv {self.folder.name} {moved}; ln -s {victim.name} {self.folder.name}"
        grep.write_text(f"#!/bin/sh\n[ -L {self.folder.name} ] || {{ {swap}; }}\nexit 1\n")
        grep.chmod(0o755)
        try:
            self.left(PATH=f"{tools.name}:{os.environ['PATH']}")
            self.assertTrue(kept.exists())
            self.assertEqual(os.listdir(moved), [])
        finally:
            if os.path.islink(self.folder.name):
                os.remove(self.folder.name)
                os.rename(moved, self.folder.name)

    def test_the_prolog_makes_a_folder_and_changes_none(self):
        for place, mode in [("new", 0o1777), ("there", 0o700)]:
            folder = pathlib.Path(self.folder.name, place)
            if place == "there":
                folder.mkdir(mode=mode)
            env = {**os.environ, "MEMTAPE_DIR": str(folder)}
            subprocess.run(["bash", EPILOG.parent / "prolog.sh"], env=env, check=True)
            self.assertEqual(folder.stat().st_mode & 0o7777, mode)

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
