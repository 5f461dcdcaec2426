"""A parity report as JUnit XML, which CI systems show: a testsuite for each runtime and form, a testcase for each case.

There is no standard of the format; elements and attributes are those of https://github.com/testmoapp/junitxml. Times
are left out: a report has none.
"""

from __future__ import annotations

from collections import Counter
from xml.etree import ElementTree

from attnport.artifacts import ParityReport, RuntimeParity
from attnport.reporting.by_case import by_case, members
from attnport.reporting.facts import ran
from attnport.reporting.markup import printable


def junit(report: ParityReport, title: str = "attnport check") -> str:
    """The XML file of a report; what XML cannot hold, such as control characters, is replaced."""
    root = ElementTree.Element("testsuites", name=printable(title))
    totals = Counter[str]()
    for name, row in members(report).items():
        counts = _suite(root, name, row)
        totals.update(counts)
    _count(root, totals)
    ElementTree.indent(root)
    made: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return f"{made.decode()}\n"


def _suite(root: ElementTree.Element, name: str, row: RuntimeParity) -> Counter[str]:
    """Adds a runtime or form, and returns how many of its cases have each verdict."""
    suite = ElementTree.SubElement(root, "testsuite", name=printable(name))
    about = ElementTree.SubElement(suite, "properties")
    for key, value in (("plan", row.plan), ("ran", ran(row.ran)), ("reason", row.reason)):
        ElementTree.SubElement(about, "property", name=key, value=printable(value))
    counts = Counter[str]()
    for case, verdict, reason in by_case(row):
        counts[verdict] += 1
        test = ElementTree.SubElement(suite, "testcase", name=printable(case), classname=printable(name))
        if verdict == "FAIL":
            failure = ElementTree.SubElement(test, "failure", message=printable(reason), type="parity")
            failure.text = printable(reason)
        elif verdict == "NOT_RUN":
            ElementTree.SubElement(test, "skipped", message=printable(reason))
    _count(suite, counts)
    return counts


def _count(element: ElementTree.Element, counts: Counter[str]) -> None:
    for key, number in (
        ("tests", counts.total()),
        ("failures", counts["FAIL"]),
        ("errors", 0),
        ("skipped", counts["NOT_RUN"]),
    ):
        element.set(key, str(number))
