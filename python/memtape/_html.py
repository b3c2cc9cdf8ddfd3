"""Small pieces of HTML and of text for notebooks: tables, paragraphs, bytes. All text is escaped."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

UNITS = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)]


def size(count: int) -> str:
    """``2.5 MiB``, rounded as the program's sentences round."""
    for unit, shift in UNITS:
        tenths = (count * 10 + (1 << (shift - 1))) >> shift
        if count >= 1024 and tenths >= 10:
            whole, tenth = divmod(tenths, 10)
            if tenth == 0:
                return f"{whole:,} {unit}"
            return f"{whole}.{tenth} {unit}" if whole < 100 else f"{(tenths + 5) // 10:,} {unit}"
    return f"{count} B"


def box(title: str, *parts: str) -> str:
    """A block with a title in bold. `parts` are HTML already."""
    return f"<div><strong>{html.escape(title)}</strong>{''.join(parts)}</div>"


def paragraph(text: str) -> str:
    """A paragraph of plain text."""
    return f"<p>{html.escape(text)}</p>"


def listing(title: str, lines: Iterable[str]) -> str:
    """A titled list of plain texts; nothing where there are none."""
    items = "".join(f"<li>{html.escape(line)}</li>" for line in lines)
    return f"<div>{html.escape(title)}</div><ul>{items}</ul>" if items else ""


def table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of plain texts: the first column is left-aligned, the others right-aligned."""
    body = "".join(f"<tr>{_cells('td', row)}</tr>" for row in rows)
    return f"<table><thead><tr>{_cells('th', titles)}</tr></thead><tbody>{body}</tbody></table>"


def _cells(tag: str, row: Sequence[str]) -> str:
    sides = ["left"] + ["right"] * len(row)
    return "".join(
        f'<{tag} style="text-align:{side}">{html.escape(text)}</{tag}>'
        for side, text in zip(sides, row)
    )
