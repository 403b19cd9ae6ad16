"""Renders a run's summary as Markdown and HTML through templates. The home of jinja2.

Knows nothing of how numbers were made: what a template shows, it is given. The same records give the same bytes.
"""

import datetime
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import jinja2

from kit import figures, measurements, tables, verdict
from kit.analysis.words import counted
from kit.claims import text, verify
from kit.claims.found import Run
from kit.claims.judge import judge
from kit.errors import UnusableInput
from kit.page import page


def newest(results: Path) -> Path:
    """The newest run below `results`; raises UnusableInput when there is none."""
    runs = sorted(results.glob("*/*/run.json"), key=lambda p: (p.parent.name, p.parent.parent.name))
    if not runs:
        raise UnusableInput("results/: no run yet; start with `invoke run --scenario smoke`")
    return runs[-1].parent


def write(folder: Path, templates: Path, home: Path) -> Path:
    """Reads a run, writes report.md, report.html and its charts into `home`, and returns the Markdown's path.

    A run whose seals or manifest are broken is reported under a banner that names the files. Raises UnusableInput when
    it cannot be read at all, and when `home` cannot be written.
    """
    made = render(verify.load(folder), templates, verify.damage(folder))
    try:
        for name, content in made.items():
            measurements.write_whole(home / name, content.encode())
    except OSError as error:
        raise UnusableInput(f"{home}: the report cannot be written there: {error.strerror}") from None
    return home / "report.md"


def render(run: Run, templates: Path, damage: Sequence[str] = ()) -> dict[str, str]:
    """The report's files by name: report.md, report.html and charts/*.svg. `damage` says what is not as sealed."""
    charts = figures.of_run(run.summary, run.records)
    text = markdown(run, templates, charts, damage)
    drawn = {chart.file: chart.draw() for chart in charts}
    html = environment(templates).get_template("report.html.j2").render(title=run.summary.title, page=page(text, drawn))
    return {"report.md": text, "report.html": html, **drawn}


def markdown(run: Run, templates: Path, charts: Sequence[figures.Chart], damage: Sequence[str] = ()) -> str:
    """The report's text alone, which names the charts and draws none."""
    return (
        environment(templates)
        .get_template("report.md.j2")
        .render(
            s=run.summary,
            scenario=run.scenario,
            run=run.records.run,
            sittings=run.records.sittings,
            conclusion=verdict.conclude(run.summary),
            claims=judge(run),
            charts=charts,
            damage=damage,
        )
    )


def verification(found: verify.VerifyReport, templates: Path) -> str:
    """What `invoke verify` found, as Markdown."""
    return environment(templates).get_template("verify.md.j2").render(r=found)


@cache
def environment(templates: Path) -> jinja2.Environment:
    """Templates in which an unknown name is an error and a missing value is n/a."""
    env = jinja2.Environment(
        loader=jinja2.FileSystemLoader(templates),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=jinja2.select_autoescape(
            enabled_extensions=("html.j2",)
        ),  # Markdown is escaped when it becomes HTML
    )
    env.filters.update(number=tables.number, share=tables.share, interval=tables.interval, when=when, counted=counted)
    env.globals.update(tables=tables, claim_tables=text)
    return env


def when(unix_s: float) -> str:
    """Seconds since 1970 as a date and time, UTC."""
    return datetime.datetime.fromtimestamp(unix_s, datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
