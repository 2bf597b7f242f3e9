"""Records of one or more runs -> the page, whole. Pure but for the clock and the package's own style and script."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources

from launcher import __version__
from launcher.report.diagnosis.rules import diagnose
from launcher.report.page.curves import draw_curves
from launcher.report.page.markup import Markup, join, tag
from launcher.report.page.nodes import show_findings, show_nodes
from launcher.report.page.overview import compare_runs, describe_run, describe_target, make_badge
from launcher.report.page.samples import show_samples
from launcher.report.page.settings import show_differences, show_settings
from launcher.report.page.timeline import show_timeline
from launcher.report.page.verdicts import show_verdicts
from launcher.report.page.words import Words, words_of
from launcher.report.run_record import RunRecord

#: nothing may be loaded from anywhere, not even by mistake
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"

Section = tuple[str, str, Markup | None]


def build_page(records: Sequence[RunRecord], language: str) -> str:
    """The page of a run, or of several compared.

    Args:
        records: one or more.
        language: ``en`` or ``zh``.
    """
    words = words_of(language)
    if len(records) == 1:
        title = words("title_one").format(name=records[0].label)
        sections = _sections_of_one(records[0], language, words)
    else:
        title = words("title_many").format(count=len(records))
        sections = _sections_of_many(records, language, words)
    shown = [(key, name, body) for key, name, body in sections if body is not None]
    page = tag(
        "html",
        tag(
            "head",
            tag("meta", charset="utf-8"),
            tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
            tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
            tag("meta", name="color-scheme", content="light dark"),
            tag("title", title),
            tag("style", _own_file("page.css")),
        ),
        tag("body", _header(records, title, words), _contents(shown), _main(shown), _footer(records, words)),
        lang="zh-CN" if language == "zh" else "en",
    )
    return "<!doctype html>\n" + page + "\n"


def _own_file(name: str) -> Markup:
    return Markup((resources.files("launcher.report.page") / name).read_text(encoding="utf-8"))


def _header(records: Sequence[RunRecord], title: str, words: Words) -> Markup:
    badge = make_badge(records[0], words) if len(records) == 1 else None
    button = tag("button", words("theme"), type="button", id="theme")
    about = tag("p", describe_target(records[0])) if len(records) == 1 else None
    return tag("header", tag("div", tag("h1", title, badge), about), button)


def _contents(sections: Sequence[Section]) -> Markup:
    return tag("nav", [tag("a", name, href=f"#{key}") for key, name, _ in sections if name])


def _main(sections: Sequence[Section]) -> Markup:
    return tag(
        "main",
        [tag("section", tag("h2", name) if name else None, body, id=key) for key, name, body in sections],
    )


def _footer(records: Sequence[RunRecord], words: Words) -> Markup:
    folder = str(records[0].path) if len(records) == 1 else words("files_of_runs")
    told = words("footer").format(version=__version__, folder=folder)
    return tag("footer", tag("p", told), tag("script", _own_file("page.js")))


def _sections_of_one(record: RunRecord, language: str, words: Words) -> list[Section]:
    verdicts = show_verdicts(diagnose(record), len(record.values("loss")), language, words)
    return [
        ("overview", "", describe_run(record, words)),
        ("verdicts", words("verdicts"), verdicts if record.metrics or record.summary else None),
        ("curves", words("curves"), draw_curves([record], words)),
        *_details_of(record, words),
        ("settings", words("settings"), show_settings(record, words)),
    ]


def _details_of(record: RunRecord, words: Words, suffix: str = "") -> list[Section]:
    problems = tag("ul", [tag("li", problem) for problem in record.problems]) if record.problems else None
    return [
        (f"samples{suffix}", words("samples"), show_samples(record, words)),
        (f"nodes{suffix}", words("nodes"), show_nodes(record, words)),
        (f"findings{suffix}", words("findings"), show_findings(record, words)),
        (f"timeline{suffix}", words("timeline"), show_timeline(record, words)),
        (f"problems{suffix}", words("problems"), problems),
    ]


def _sections_of_many(records: Sequence[RunRecord], language: str, words: Words) -> list[Section]:
    judged = []
    for record in records:
        verdicts = show_verdicts(diagnose(record), len(record.values("loss")), language, words)
        judged.append(tag("div", tag("h3", record.label, make_badge(record, words)), verdicts))
    return [
        ("overview", words("runs"), compare_runs(records, words)),
        ("curves", words("curves"), draw_curves(records, words)),
        ("differences", words("differences"), show_differences(records, words)),
        ("verdicts", words("verdicts"), join(judged)),
        *(
            (f"run-{index}", record.label, _fold_run(record, words))
            for index, record in enumerate(records, start=1)
        ),
    ]


def _fold_run(record: RunRecord, words: Words) -> Markup:
    """All that is of one run alone, folded up."""
    parts = [
        tag("details", tag("summary", name), body)
        for _, name, body in _details_of(record, words)
        if body is not None
    ]
    return join([describe_run(record, words), *parts])
