"""Every sub-command of mqadmin 5.3.3 prints on our cluster what it prints on RocketMQ's; each difference is said."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.mqadmin.cases import CASES, SECRET, Case
from tests.mqadmin.conftest import IS_JAVA, MODE, USER
from tests.mqadmin.driver import Driver, comparable, read_sections, write_sections

_HERE = Path(__file__).parent
_JAVA, _OURS = _HERE / "java-5.3.3.txt", _HERE / "ours.txt"
_JAVA_TITLE = "# What mqadmin 5.3.3 prints on RocketMQ 5.3.3: `make mqadmin-java` writes it."
_OURS_TITLE = "# What it prints on LedgerMQ where that differs; why is in cases.py. `pytest --rewrite` writes it."


@pytest.mark.cluster
@pytest.mark.java
def test_every_sub_command_prints_what_it_prints_on_rocketmq(
    driver: Driver, places: Mapping[str, str], request: pytest.FixtureRequest
) -> None:
    if USER:
        driver.run(Case(f"!user {USER.replace(':', ' ')}"), places)
    printed = dict(_run_all(driver, places))
    rewrites = request.config.getoption("--rewrite")
    if IS_JAVA:
        if rewrites:
            write_sections(_JAVA, _JAVA_TITLE, printed)
        _check(read_sections(_JAVA), printed)
        return
    expected = read_sections(_JAVA)
    differing = [heading for heading, case in _headings() if case.differs and not (USER and case.differs == SECRET)]
    if MODE == "raft":
        differing += [heading for heading, case in _headings() if case.in_raft]
    kept = _OURS.with_stem("ours-raft") if MODE == "raft" else _OURS
    if rewrites and not USER:
        write_sections(kept, _OURS_TITLE, {heading: printed[heading] for heading in differing})
    ours = read_sections(kept)
    _check({**expected, **{heading: ours[heading] for heading in differing}}, printed)
    assert USER or sorted(ours) == sorted(differing)


def test_the_table_has_every_sub_command() -> None:
    commands = {case.command for case in CASES if not case.command.startswith("!")} - {"noSuchCommand"}
    protocol_page = 89
    assert len(commands) == protocol_page


def _headings() -> Iterator[tuple[str, Case]]:
    seen: Counter[str] = Counter()
    for case in CASES:
        seen[case.words] += 1
        yield case.words + (f" #{seen[case.words]}" if seen[case.words] > 1 else ""), case


def _run_all(driver: Driver, places: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    values = dict(places)
    for heading, case in _headings():
        printed = driver.run(case, values)
        if case.words.startswith("!produce"):
            found = re.search(r"([0-9A-F]{32}) ([0-9A-F]{32})", printed)
            assert found, printed
            values |= {"offset_id": found[1], "unique_key": found[2]}
        yield heading, comparable(case, printed, values)


def _check(expected: Mapping[str, str], printed: Mapping[str, str]) -> None:
    cases = dict(_headings())
    different = [
        f"### {heading}\n--- expected\n{expected.get(heading)}\n--- printed\n{text}"
        for heading, text in printed.items()
        if not _is_same(cases[heading], expected.get(heading, "").splitlines(), text.splitlines())
    ]
    assert not different, "\n" + "\n".join(different)


def _is_same(case: Case, expected: list[str], printed: list[str]) -> bool:
    """A remark of ours may go on where RocketMQ's ends, to say what was wrong."""
    if case.sorted:
        expected, printed = sorted(expected), sorted(printed)
    return len(expected) == len(printed) and all(
        text == line or (" CODE: " in line and text.startswith(line))
        for line, text in zip(expected, printed, strict=True)
    )
