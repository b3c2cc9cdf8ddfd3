"""Virtual environments of Python below target/, each made once for one purpose:
`environment.py [--add | --check] FOLDER PACKAGE…`.

Packages are written as pip takes them, those of one version as name==version. Nothing is done where
all are there. One that is half made, by a run that was interrupted, is made again; with `--add` the
packages are installed into what is there. `--check` only says by its exit code whether all are there.
"""

import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[1]

# A local version such as 2.11.0+cu130 is the same release; extras in brackets are not looked at.
VERSIONS = """
import importlib.metadata as metadata, sys
for name, _, version in (package.partition("==") for package in sys.argv[1:]):
    installed = metadata.version(name.split("[")[0]).split("+")[0]
    assert installed == version or not version
"""


def has(python, packages, **options):
    """The interpreter is there and has these packages in these versions."""
    try:
        check = [python, "-c", VERSIONS, *packages]
        return subprocess.run(check, capture_output=True, **options).returncode == 0
    except OSError:
        return False


def make(folder, packages, *, adds=False):
    """Makes the environment in this folder of the repository; the folder of its programs."""
    programs = ROOT / folder / "bin"
    if has(programs / "python", packages):
        return programs
    maker = [sys.executable, "-m", "venv", "--clear", ROOT / folder]
    if not adds and subprocess.run(maker, capture_output=True).returncode != 0:
        # Some distributions ship Python without the pip that an environment gets by itself.
        subprocess.run([*maker, "--without-pip"], check=True)
    pip = [programs / "python", "-m", "pip"]
    if subprocess.run([*pip, "--version"], capture_output=True).returncode != 0:
        pip = [sys.executable, "-m", "pip", "--python", programs / "python"]
    install = [*pip, "install", "--quiet", "--disable-pip-version-check", *packages]
    subprocess.run(install, check=True, stdout=sys.stderr)
    return programs


def main():
    options = [word for word in sys.argv[1:] if word.startswith("--")]
    folder, *packages = [word for word in sys.argv[1:] if not word.startswith("--")]
    if "--check" in options:
        sys.exit(not has(ROOT / folder / "bin/python", packages))
    try:
        make(folder, packages, adds="--add" in options)
    except subprocess.CalledProcessError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
