"""The documents as a site, in target/docs/site: `site_of_docs.py MDBOOK`.

mdBook knows the files of its book only. So it gets a copy of docs/ in which links to other files of
the repository lead to the repository's address. That every page is listed and no link is dead, the
tests of the repository check (tests/repository).
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[1]
SOURCE, SITE = ROOT / "target/docs/source", ROOT / "target/docs/site"
REPOSITORY = re.search(r'^repository = "(.+)"$', (ROOT / "Cargo.toml").read_text(), re.MULTILINE)[1]


def with_links_out(text, page):
    """The text of a page, whose path begins with docs/, with links to files beside the book leading
    to the repository."""

    def led_out(link):
        path = os.path.normpath(page.parent / link[1])
        is_other = "://" in link[1] or link[1].startswith(("#", "mailto:"))
        if is_other or path.split("/")[0] == "docs":
            return link[0]
        return f"]({REPOSITORY}/blob/main/{path})"

    return re.sub(r"\]\(([^)]*)\)", led_out, text)


def copy(docs):
    """Copies the book."""
    shutil.rmtree(SOURCE, ignore_errors=True)
    shutil.copytree(docs, SOURCE)
    for path in SOURCE.rglob("*.md"):
        page = pathlib.Path("docs") / path.relative_to(SOURCE)
        path.write_text(with_links_out(path.read_text(), page))


def main():
    copy(ROOT / "docs")
    build = [sys.argv[1], "build", SOURCE, "--dest-dir", SITE]
    subprocess.run(build, check=True, cwd=ROOT, stdout=sys.stderr)
    pages = len(list(SITE.rglob("*.html")))
    print(json.dumps({"figures": {"pages": pages}, "text": f"{pages} pages: {SITE / 'index.html'}\n"}))


if __name__ == "__main__":
    main()
