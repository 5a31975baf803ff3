"""Rules of accessibility, looked at in the page: those of axe-core, and some of our own.

axe-core comes as a package, so nothing is fetched when the tests run. Ours are about what it does
not know: that every number says what it is, and that whoever has only keys gets everywhere.
"""

from __future__ import annotations

import importlib.util
from itertools import pairwise
from pathlib import Path

import pytest
from browser.chromium import Page

PACKAGE = "axe_core_python"
TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]
SOME_RULES = ["color-contrast", "scrollable-region-focusable"]
RUN = """axe.run(document, {runOnly: {type: '%s', values: %s}}).then(found =>
    found.violations.map(rule => rule.id + ': ' + rule.help + ' | ' + rule.nodes.map(node =>
        node.target.join(' ') + ' ' + node.failureSummary).join(' | ')))"""
# Numbers in tables and tiles that no title explains.
UNTOLD = """[...document.querySelectorAll('tbody td, tbody th, thead th, .tile, .facts dd')]
    .filter(one => /\\d/.test(one.textContent) && !one.closest('[title]'))
    .map(one => one.outerHTML.slice(0, 120))"""
HEADINGS = "[...document.querySelectorAll('h1, h2, h3')].map(one => Number(one.tagName[1]))"
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


def source() -> str:
    found = importlib.util.find_spec(PACKAGE)
    if found is None or found.origin is None:
        pytest.skip("axe-core is missing (pip install '.[browser]', or bin/test browser)")
    return (Path(found.origin).parent / "axe.min.js").read_text(encoding="utf-8")


def violations(page: Page, only_looks: bool = False) -> list[str]:
    """What is wrong with the page as it is shown now; or only with what depends on its looks."""
    if page.run("typeof axe") == "undefined":
        page.run(source() + ";0")
    found: list[str] = page.run(RUN % (("rule", SOME_RULES) if only_looks else ("tag", TAGS)))
    levels = page.run(HEADINGS)
    if not levels or levels[0] != 1 or any(b > a + 1 for a, b in pairwise(levels)):
        found.append(f"headings: {levels}")
    found += [f"no title: {one}" for one in page.run(UNTOLD)]
    if page.run(OVERFLOW) > 0:
        found.append(f"wider than the window by {page.run(OVERFLOW)} pixels")
    return found


def tab_stops(page: Page, most: int = 60) -> list[str]:
    """What the Tab key leads to, in order; each has to show that it has the focus."""
    page.run("document.activeElement.blur()")
    stops: list[str] = []
    for _ in range(most):
        page.tab()
        told = page.run(
            "(() => { const one = document.activeElement; if (one === document.body) return null;"
            " const style = getComputedStyle(one); return [one.form && one.id || one.innerText ||"
            " one.getAttribute('aria-label') || one.outerHTML.slice(0, 60),"
            " style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) > 0] })()"
        )
        if told is None:
            break
        name, is_shown = told
        assert is_shown, f"nobody sees that {name!r} has the focus"
        stops.append(name.strip())
    return stops
