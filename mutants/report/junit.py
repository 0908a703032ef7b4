"""The JUnit report of a score: one test case per mutant, which passes if it was killed."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from mutants.campaign.result import NOT_KILLED, Result, Score
from mutants.library.registry import known
from mutants.report.advice import fuzz_command, suggest_kill
from mutants.report.places import place_of
from mutants.report.report import Report
from mutants.report.words import (
    FAULTY,
    describe_fault,
    describe_run,
    explain_state,
    sort_for_reading,
    state_words,
    why_no_score,
)

ELEMENTS = {
    **dict.fromkeys(NOT_KILLED, "failure"),
    **dict.fromkeys(FAULTY, "error"),
    **dict.fromkeys(("equivalent", "inapplicable"), "skipped"),
}
"""The element in the test case of a mutant in each state except `killed`."""
ILLEGAL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 cannot hold (section 2.2 of the standard)."""


def render(report: Report) -> str:
    """Returns the score as one suite of tests. If there is no score, the last test case, `score`,
    is an error with the reason, so that no reader takes the suite for a pass."""
    score = report.score
    cases = [_case(score, result) for result in sort_for_reading(score)]
    if score.percent is None:
        cases.append(_no_score(score))
    suite = ElementTree.Element("testsuite", _totals(score, cases))
    properties = ElementTree.SubElement(suite, "properties")
    for name, value in (*describe_run(score), ("command", score.command)):
        ElementTree.SubElement(properties, "property", name=_legal(name), value=_legal(value))
    suite.extend(cases)
    suites = ElementTree.Element("testsuites", suite.attrib)
    suites.append(suite)
    ElementTree.indent(suites, " ")
    written: bytes = ElementTree.tostring(suites, encoding="utf-8")
    return f"{written.decode()}\n"


def _totals(score: Score, cases: list[ElementTree.Element]) -> dict[str, str]:
    counts = {
        name: str(sum(case.find(element) is not None for case in cases))
        for name, element in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped"))
    }
    name = f"kvfuzz mutation score of {_legal(score.subject)}"
    return {"name": name, "tests": str(len(cases)), **counts, "time": f"{score.seconds:.3f}"}


def _case(score: Score, result: Result) -> ElementTree.Element:
    place = place_of(result.id)
    case = ElementTree.Element(
        "testcase",
        classname=_legal(f"kvfuzz.{result.operator}"),
        name=_legal(result.id),
        time=f"{result.seconds:.3f}",
        file=_legal(place.file),
        line=str(place.start_line),
    )
    if result.state != "killed":
        message = f"{state_words(result.state)}: {explain_state(result)}"
        element = ElementTree.SubElement(
            case, ELEMENTS[result.state], type=result.state, message=_legal(message)
        )
        element.text = _legal(_detail(score, result))
    return case


def _detail(score: Score, result: Result) -> str:
    mutant = known(result.id)
    lines = [
        f"fault: {describe_fault(mutant)}",
        f"to kill it: {suggest_kill(result, mutant)}",
        f"to fuzz it: {fuzz_command(score, result, mutant)}",
    ]
    return "\n".join(lines)


def _no_score(score: Score) -> ElementTree.Element:
    case = ElementTree.Element("testcase", classname="kvfuzz", name="score", time="0.000")
    message = _legal(why_no_score(score))
    ElementTree.SubElement(case, "error", type="inconclusive", message=message)
    return case


def _legal(text: str) -> str:
    return ILLEGAL.sub("\N{REPLACEMENT CHARACTER}", text)
