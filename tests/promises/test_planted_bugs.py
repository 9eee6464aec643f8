"""Each promise of the README can be broken, and a test then fails: the first table of docs/testing.md, carried out.

README.md   | promise | tests |           every word of it is that of some row below, but for commas and "and"
testing.md  | promise | bug | file |      the bug is one of `bugs`, and the file that of its test
bugs        bug: test, plant              the test fails with the bug, and passes without
"""

import re
from pathlib import Path

import pytest

from tests.promises.bugs import BUGS
from tests.promises.planted import PROJECT, run

JOINTS = {"and", "it", "or"}
PLANTED_HERE = [words for words, bug in BUGS.items() if bug.plant is not None]
PLANTED_THERE = {bug.test for bug in BUGS.values() if bug.plant is None}
README = (PROJECT / "README.md").read_text()


def rows(page: str, head: str) -> list[list[str]]:
    """Return the cells of the table of a page that begins with this line."""
    lines = page[page.index(head) :].splitlines()[2:]
    table = lines[: next(number for number, line in enumerate(lines) if not line.lstrip().startswith("|"))]
    return [[cell.strip() for cell in line.strip().strip("|").split(" | ")] for line in table]


TABLE = rows((PROJECT / "docs" / "testing.md").read_text(), "| promise | planted bug | found by |")
DELIVERY = next(line for line in README.splitlines() if line.startswith("Delivery is at least once"))
PROMISES = [promise for promise, _ in rows(README, "| promise | the test that proves it |")] + [DELIVERY]


@pytest.mark.parametrize("promise", PROMISES)
def test_each_part_of_a_promise_has_a_bug_that_breaks_it(promise: str) -> None:
    left = promise
    for part in sorted({part for part, *_ in TABLE}, key=len, reverse=True):
        left = left.replace(part, "")
    assert set(re.findall(r"[\w'()]+", left)) <= JOINTS, f"of {promise!r} no bug breaks {left!r}"


def test_the_page_names_each_bug_and_the_file_of_its_test() -> None:
    named = {bug: test.strip("`") for _, bug, test in TABLE}
    assert named == {words: bug.test.partition("::")[0] for words, bug in BUGS.items()}


@pytest.mark.parametrize("words", PLANTED_HERE)
def test_the_named_test_finds_the_bug(tmp_path: Path, words: str) -> None:
    test, plant = BUGS[words]
    assert plant is not None
    with plant():
        assert run([test], tmp_path / "inner", "--exitfirst").failed, f"{test} passes"


def test_without_a_bug_the_named_tests_pass(tmp_path: Path) -> None:
    tests = {BUGS[words].test for words in PLANTED_HERE if BUGS[words].test not in PLANTED_THERE}
    outcome = run(tests, tmp_path / "inner")
    assert outcome.passed == outcome.found and len(outcome.found) >= len(tests)


def test_the_tests_that_plant_their_bug_themselves_are_there(tmp_path: Path) -> None:
    assert set(run(PLANTED_THERE, tmp_path / "inner", "--collect-only").found) == PLANTED_THERE
