"""Tests of the programs in this folder, run by `cargo test -p xtask`."""

import os
import pathlib
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
sys.path.append(str(pathlib.Path(__file__).parents[1] / "tests/bench"))

import analyze
import environment
import objects
import release
import site_of_docs
from objects import Demands
from wheel import Failed

PROGRAM = """#!/bin/sh
case "$1" in
completions) echo "completions of $2" ;;
man) mkdir -p "$2" && echo page | tee "$2/memtape.1" >"$2/memtape-run.1" ;;
esac
"""


class Folder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name).resolve()


class Figures(unittest.TestCase):
    def test_medians_become_ratios(self):
        def run(took, peak):
            return {"seconds": took, "peak_bytes": peak, "cpu_seconds": took}

        ours = [run(2.0, 1_200), run(9.0, 1_300), run(1.0, 1_100)]
        found = analyze.figures(1_000, ours, [run(6.0, 6_000)] * 3)
        self.assertEqual((found["seconds"], found["peak_per_file_byte"]), (2.0, 1.2))
        self.assertEqual((found["pickle_times_slower"], found["pickle_times_larger"]), (3.0, 5.0))
        self.assertEqual((found["is_fast"], found["is_small"]), (False, True))


class Environments(Folder):
    def test_versions_are_compared(self):
        for package in ("torch-2.11.0+cu130", "numpy-2.4.1", "uvicorn-0.38.0"):
            name, version = package.split("-")
            (self.folder / f"{package}.dist-info").mkdir()
            text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
            (self.folder / f"{package}.dist-info/METADATA").write_text(text)
        env = os.environ | {"PYTHONPATH": str(self.folder)}
        for packages, expected in [
            (["torch==2.11.0", "numpy"], True),
            (["uvicorn==0.38.0"], True),
            (["uvicorn[standard]==0.38.0"], True),
            (["torch==2.11.1", "numpy"], False),
            (["torch==2.1.0"], False),
            (["torch==2.11.0", "absent-package"], False),
        ]:
            self.assertEqual(environment.has(sys.executable, packages, env=env), expected, packages)
        self.assertFalse(environment.has(self.folder / "absent", []))


class Objects(unittest.TestCase):
    def test_versions_are_read_as_numbers(self):
        for name, expected in [
            ("GLIBC_2.17", (2, 17)), ("GLIBC_2.2.5", (2, 2)), ("GLIBC_PRIVATE", (0, 0)), ("GCC_3.0", (0, 0)),
        ]:  # fmt: skip
            self.assertEqual(objects.glibc_of(name), expected)
        self.assertLess(objects.glibc_of("GLIBC_2.5"), objects.glibc_of("GLIBC_2.17"))

    def test_a_program_shows_what_it_needs(self):
        found = objects.demands("/bin/sh")
        self.assertIn("libc.so.6", found.libraries)
        self.assertGreaterEqual(found.glibc, (2, 2))
        self.assertIn("malloc", found.undefined)

    def test_promises_are_checked(self):
        old, recorder = (2, 17), objects.RECORDER
        for floor, name, demands, expected in [
            (old, "memtape", Demands(), []),
            (old, "memtape", Demands(glibc=(2, 17)), []),
            (old, "memtape", Demands(glibc=(2, 28)), ["memtape needs glibc 2.28"]),
            (old, recorder, Demands(glibc=(2, 28)), ["libmemtape.so needs glibc 2.28"]),
            (None, "memtape", Demands(glibc=(2, 28)), []),
            (None, "memtape", Demands(libraries=["libc.so.6", "libssl.so.3"]), ["memtape needs libssl.so.3"]),
            (None, "memtape", Demands(libraries=["libcuda.so.1"]), ["memtape needs libcuda.so.1"]),
            (None, "libfakecudart.so", Demands(libraries=["libcuda.so.1"]), []),
            (None, recorder, Demands(undefined=["Py_Initialize", "malloc"]),
             ["libmemtape.so needs Python's Py_Initialize"]),
            (None, recorder, Demands(exported=["cudaMalloc", "_Unwind_Resume"]),
             ["libmemtape.so would take over _Unwind_Resume"]),
        ]:  # fmt: skip
            self.assertEqual(objects.broken(floor, name, demands), expected)

    def test_folders_of_the_build_are_found(self):
        content = f"…{objects.ROOT}/cli/src/main.rs…".encode()
        found = objects.broken((2, 17), "memtape", Demands(), content)
        self.assertEqual(found, [f"memtape names {objects.ROOT}"])
        self.assertEqual(objects.broken(None, "memtape", Demands(), content), [])


class Release(Folder):
    def test_missing_completions_and_pages_are_found(self):
        program = self.folder / "memtape"
        program.write_text(PROGRAM)
        program.chmod(0o755)
        files = release.help_of(program)
        self.assertEqual(len(files), 5)
        for name, content in files.items():
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / name).write_bytes(content)
        release.check_help(self.folder)
        for name, content in files.items():
            (self.folder / name).unlink()
            self.assertRaises(Failed, release.check_help, self.folder)
            (self.folder / name).write_bytes(b"of another version")
            self.assertRaises(Failed, release.check_help, self.folder)
            (self.folder / name).write_bytes(content)
        release.check_help(self.folder)

    def test_an_archive_does_not_depend_on_its_files(self):
        program, library = self.folder / "memtape", self.folder / "libmemtape.so"
        program.write_text(PROGRAM)
        program.chmod(0o755)
        library.write_text("library")
        packed = release.pack(program, library)
        os.utime(library, (1, 1))
        library.chmod(0o600)
        self.assertEqual(release.pack(program, library), packed)

    def test_cargos_own_list_is_read(self):
        packages = release.packages()
        for name in ("memtape", "memtape-core", "memtape-recorder"):
            self.assertIn(f"{name} {release.VERSION}", packages)
        self.assertTrue(any(package.startswith("sled 0.34") for package in packages))
        self.assertFalse(any(package.startswith("proptest") for package in packages))

    def test_a_package_without_licence_or_checksum_is_named(self):
        licenses, hashes = [{"expression": "MIT"}], [{"alg": "SHA-256"}]
        bill = {"components": [
            {"name": "memtape-core", "licenses": licenses},
            {"name": "serde", "licenses": licenses, "hashes": hashes},
            {"name": "unlicensed", "hashes": hashes},
            {"name": "unhashed", "licenses": licenses, "hashes": []},
        ]}  # fmt: skip
        self.assertEqual(release.unproven(bill), ["unlicensed", "unhashed"])

    def test_a_bill_without_a_package_is_refused(self):
        serde = {"name": "serde", "version": "2.0", "licenses": [1], "hashes": [1]}
        bill = {"metadata": {"component": {"name": "memtape", "version": "1"}}, "components": [serde]}
        self.assertEqual(release.components(bill), {"memtape 1", "serde 2.0"})
        release.check_bill(bill, {"memtape 1", "serde 2.0"})
        self.assertRaises(Failed, release.check_bill, bill, {"serde 2.0", "sled 0.34"})


class Site(unittest.TestCase):
    def test_links_that_leave_the_book_lead_to_the_repository(self):
        page = pathlib.Path("docs/quickstart/slurm.md")
        out = site_of_docs.REPOSITORY + "/blob/main"
        for link, expected in [
            ("torchrun.md", "torchrun.md"),
            ("../memory.md#the-ledger", "../memory.md#the-ledger"),
            ("#marks", "#marks"),
            ("https://example.org/a", "https://example.org/a"),
            ("../../README.md#install", f"{out}/README.md#install"),
            ("../../deploy/slurm/", f"{out}/deploy/slurm"),
        ]:
            text = site_of_docs.with_links_out(f"See [it]({link}), [it]({link}).", page)
            self.assertEqual(text, f"See [it]({expected}), [it]({expected}).")
        unclosed = "an [open](link"
        self.assertEqual(site_of_docs.with_links_out(unclosed, page), unclosed)


if __name__ == "__main__":
    unittest.main()
