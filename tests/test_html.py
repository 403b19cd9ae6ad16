"""The HTML report as a browser sees it: quiet, offline, charts drawn, tables inside the page, details that open."""

import re
from collections import Counter
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest

from kit import report
from tests import browser
from tests.claims import folder
from tests.synthetic import ArmTruth, Truth, build

TEMPLATES = Path(__file__).parent.parent / "templates"
TRUTH = Truth(
    arms={
        "plain": ArmTruth(),
        "eagle3": ArmTruth(speed=lambda c: 1.5 if c <= 8 else 0.7, accept_length=2.7, draft=True, pool_tokens=9_951),
        "ngram": ArmTruth(speed=1.2, accept_length=1.6),
    },
    concurrency=(1, 8, 32),
    noise=0.005,
    load_format="dummy",
)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report alone in a folder: whatever it needed beside itself would be missed."""
    m = build(TRUTH)
    title = "More <b>output</b> & less waiting"
    m = msgspec.structs.replace(m, run=msgspec.structs.replace(m.run, scenario={**m.run.scenario, "title": title}))
    home = tmp_path_factory.mktemp("report")
    report.write(folder.write(m, home / "run"), TEMPLATES, home / "made")
    return (home / "made" / "report.html").rename(home / "report.html")


@pytest.fixture(scope="module")
def opened(written: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[browser.Page]:
    chromium = browser.find()
    if chromium is None:
        pytest.skip(f"no {', no '.join(browser.NAMES)} on the path: THE HTML REPORT WAS NOT OPENED IN A BROWSER")
    with browser.page(chromium, tmp_path_factory.mktemp("profile")) as page:
        page.open(written.as_uri())
        yield page


class Loads(HTMLParser):
    """What a page would fetch, its scripts and its ids."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.ids: Counter[str] = Counter()
        self.tags: Counter[str] = Counter()
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        for name, value in attrs:
            if name == "id":
                self.ids[value or ""] += 1
            if name in ("src", "srcset", "data", "poster") or (name.endswith("href") and tag != "a"):
                self.fetched.append(value or "")
            self.fetched += re.findall(r"url\(([^)]*)\)", value or "")


def test_the_file_names_nothing_to_fetch(written: Path) -> None:
    html = written.read_text()
    found = Loads(html)
    assert [x for x in found.fetched if not x.startswith(("#", "data:"))] == []
    assert found.tags["script"] == 0
    assert found.tags["img"] == 0, "every chart stands in the file itself"
    assert "@import" not in html


def test_ids_are_unique_though_charts_share_their_letters(written: Path) -> None:
    assert [name for name, count in Loads(written.read_text()).ids.items() if count > 1] == []


def test_a_title_is_text(written: Path) -> None:
    html = written.read_text()
    assert "<title>More &lt;b&gt;output&lt;/b&gt; &amp; less waiting</title>" in html
    assert "<b>output" not in html


def test_the_console_stays_empty(opened: browser.Page) -> None:
    assert opened.complaints() == []


def test_nothing_is_asked_of_the_network(opened: browser.Page, written: Path) -> None:
    asked = [url for url in opened.requests() if not url.startswith("data:")]
    assert asked == [written.as_uri()]


def test_a_page_that_asks_and_complains_is_found_out(opened: browser.Page, written: Path, tmp_path: Path) -> None:
    """The browser sees what it must see; nothing leaves the machine, since no name resolves."""
    bad = tmp_path / "bad.html"
    bad.write_text('<img src="http://nowhere.invalid/x.png"><script>console.error("x"); nothing()</script>')
    opened.open(bad.as_uri())
    assert "http://nowhere.invalid/x.png" in opened.requests()
    assert len(opened.complaints()) >= 2
    opened.open(written.as_uri())


def test_every_chart_is_drawn(opened: browser.Page) -> None:
    """Each has a size, and so has what lies in it: letters whose outlines are missing would have none."""
    sizes = opened.evaluate(
        "[...document.querySelectorAll('svg')].map(svg => {"
        " const box = svg.getBoundingClientRect(), ink = svg.querySelector('g').getBBox();"
        " const letters = [...svg.querySelectorAll('use')].map(use => use.href.baseVal);"
        " return [box.width, box.height, ink.width, ink.height, letters.length,"
        "  letters.filter(name => !document.querySelector(name)).length]})"
    )
    assert len(sizes) == 5  # pools, output, first token, time per token, gaps
    for width, height, ink_width, ink_height, letters, lost in sizes:
        assert min(width, height, ink_width, ink_height) > 100
        assert letters > 20
        assert lost == 0


@pytest.mark.parametrize("width", [1440, 1000, 420])
def test_no_table_breaks_the_page(opened: browser.Page, width: int) -> None:
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    opened.ask("Emulation.setDeviceMetricsOverride", **size)
    assert opened.evaluate("document.documentElement.scrollWidth") == width


def test_details_wait_folded_and_a_link_opens_them(opened: browser.Page) -> None:
    assert opened.evaluate("document.querySelectorAll('details').length") >= 8
    assert opened.evaluate("document.querySelectorAll('details[open]').length") == 0
    opened.evaluate("document.querySelector('nav .folded a').click()")
    assert opened.evaluate("document.querySelectorAll('details[open]').length") == 1


def test_every_link_of_the_contents_leads_somewhere(opened: browser.Page) -> None:
    script = "[...document.querySelectorAll('nav a')].map(a => [a.hash, !!document.getElementById(a.hash.slice(1))])"
    links = opened.evaluate(script)
    assert len(links) > 10
    assert [hash for hash, there in links if not there] == []


def test_details_are_printed_though_they_are_folded(opened: browser.Page) -> None:
    opened.ask("Emulation.setEmulatedMedia", media="print")
    heights = opened.evaluate(
        "[...document.querySelectorAll('details > div')].map(d => d.getBoundingClientRect().height)"
    )
    opened.ask("Emulation.setEmulatedMedia", media="screen")
    assert min(heights) > 10


def test_numbers_stand_to_the_right_and_digits_below_each_other(opened: browser.Page) -> None:
    script = (
        "[...document.querySelectorAll('td.number')].map(td =>"
        " [td.innerText, getComputedStyle(td).textAlign, getComputedStyle(td).whiteSpace])"
    )
    cells = opened.evaluate(script)
    assert len(cells) > 50
    assert {(align, space) for _, align, space in cells} == {("right", "nowrap")}
    assert any(text.endswith("*") for text, _, _ in cells), "an indicative P99 keeps its mark"
