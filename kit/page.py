"""Markdown as the body of one HTML page: the home of markdown-it. Knows headings, tables and pictures; nothing of runs.

The Markdown is not changed for it. Sections under a later first-level heading fold; a table's columns of numbers stand
to the right; a picture whose file is given is put in its place, so that the page needs no other file.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from markdown_it import MarkdownIt
from markdown_it.token import Token

NUMBER = re.compile(r"[-+]?\d[\d,]*(\.\d+)?( ?%)?( \*)?")
EMPTY = ("", "n/a", "–")
SHORT = 26
"""Cells of a column of texts no longer than this stay on one line."""
LONG = 60
"""From so many characters on, a column of texts keeps a readable width."""
WIDE = 11
"""From so many columns on, a table is printed on a page of its own direction."""


class Section(msgspec.Struct, frozen=True):
    """A second-level heading, for the list of contents; `folded` when one has to open it."""

    anchor: str
    title: str
    folded: bool


class Page(msgspec.Struct, frozen=True):
    """The body's HTML and what it contains."""

    body: str
    sections: list[Section]


def page(markdown: str, pictures: Mapping[str, str]) -> Page:
    """The Markdown as HTML; `pictures` maps the file that an image names to the element that replaces it."""
    reader = MarkdownIt("commonmark", {"html": False}).enable("table")
    reader.add_render_rule("image", _picture)
    tokens = reader.parse(markdown)
    for table in _tables(tokens):
        _mark(table)
    laid = list(_framed(_folded(tokens)))
    sections = [t.meta["section"] for t in laid if "section" in t.meta]
    return Page(reader.renderer.render(laid, reader.options, {"pictures": pictures}), sections)


def _picture(renderer: Any, tokens: Sequence[Token], at: int, options: Any, env: Mapping[str, Any]) -> str:
    """A given picture as it is, with ids of its own; any other image as Markdown has it."""
    source = str(tokens[at].attrGet("src"))
    if source not in env["pictures"]:
        return str(renderer.image(tokens, at, options, env))
    own = re.sub(r"\W+", "-", source.rpartition("/")[2].rpartition(".")[0])
    return re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{own}-", env["pictures"][source]).rstrip()


# ---- sections -------------------------------------------------------------------------------------------------------


def _folded(tokens: Sequence[Token]) -> Iterator[Token]:
    """The tokens, each second-level heading with an anchor; after a later first-level heading each of them folds."""
    firsts, is_open = 0, False
    for at, token in enumerate(tokens):
        if token.type == "heading_open" and token.tag in ("h1", "h2"):
            firsts += token.tag == "h1"
            if is_open:
                yield _raw("</div>\n</details>\n")
            is_open = token.tag == "h2" and firsts > 1
            if token.tag == "h2":
                token.meta["section"] = _section(tokens[at + 1].content, is_open)
            if is_open:
                yield _raw("<details>\n<summary>")
            elif token.tag == "h2":
                token.attrSet("id", token.meta["section"].anchor)
        yield token
        if is_open and token.type == "heading_close" and token.tag == "h2":
            anchor = tokens[at - 2].meta["section"].anchor
            yield _raw(f'</summary>\n<div id="{anchor}">\n')  # a link to what is inside opens it
    if is_open:
        yield _raw("</div>\n</details>\n")


def _section(title: str, folded: bool) -> Section:
    return Section(re.sub(r"\W+", "-", title.lower()).strip("-"), title, folded)


def _raw(html: str) -> Token:
    return Token("html_block", "", 0, content=html)


# ---- tables ---------------------------------------------------------------------------------------------------------


def _framed(tokens: Iterable[Token]) -> Iterator[Token]:
    """The tokens, each table in a frame that scrolls when the table is wider than the page."""
    for token in tokens:
        if token.type == "table_open":
            yield _raw(f'<div class="{token.meta["frame"]}">\n')
        yield token
        if token.type == "table_close":
            yield _raw("</div>\n")


def _tables(tokens: Sequence[Token]) -> Iterator[Sequence[Token]]:
    start = 0
    for at, token in enumerate(tokens):
        if token.type == "table_open":
            start = at
        elif token.type == "table_close":
            yield tokens[start : at + 1]


def _mark(table: Sequence[Token]) -> None:
    """Gives a table's cells the class of their column, and a row that goes on with the same first cell its own."""
    rows = list(_rows(table))
    columns = list(zip(*rows, strict=True))
    table[0].meta["frame"] = "table wide" if len(columns) >= WIDE else "table"
    for column in columns:
        kind = _kind([text.content for _, text in column[1:]])
        for cell, text in column:
            cell.attrs.pop("style", None)
            if kind:
                cell.attrSet("class", kind)
            if kind == "number":
                _hang(text)
    _group(table, rows)


def _rows(table: Sequence[Token]) -> Iterator[list[tuple[Token, Token]]]:
    """Each row's cells: the token that opens it, and its text."""
    row: list[tuple[Token, Token]] = []
    for at, token in enumerate(table):
        if token.type in ("th_open", "td_open"):
            row.append((token, table[at + 1]))
        elif token.type == "tr_close":
            yield row
            row = []


def _kind(texts: Sequence[str]) -> str:
    said = [text for text in texts if text not in EMPTY]
    if said and all(NUMBER.fullmatch(text) for text in said):
        return "number"
    longest = max(map(len, texts), default=0)
    return "short" if longest <= SHORT else "text" if longest >= LONG else ""


def _hang(text: Token) -> None:
    """The mark behind a number takes no room, so that digits stand below each other."""
    if text.content.endswith(" *") and text.children:
        last = text.children[-1]
        last.content = last.content.removesuffix(" *")
        text.children.append(Token("html_inline", "", 0, content='<span class="hung"> *</span>'))


def _group(table: Sequence[Token], rows: Sequence[Sequence[tuple[Token, Token]]]) -> None:
    """A row belongs to the one above when they agree up to the first column that tells rows apart."""
    opens = [token for token in table if token.type == "tr_open"]
    texts = [[text.content for _, text in row] for row in rows]
    lead = next((at for at, column in enumerate(zip(*texts[1:], strict=True)) if len(set(column)) > 1), 0)
    for at in range(2, len(rows)):
        agree = [a == b for a, b in zip(texts[at], texts[at - 1], strict=True)][: lead + 1]
        for cell, _ in rows[at][: (agree + [False]).index(False)]:
            cell.attrJoin("class", "same")
        if all(agree):
            opens[at].attrSet("class", "again")
