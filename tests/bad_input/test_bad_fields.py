"""Every request with every field wrong: answered with the code of the real broker and a remark that names the field.

What 5.3.3 says stands in `answers_5_3_3.tsv` (`record.py` wrote it). A field that it does without may be missing or
empty here, too, but for those in `_NEEDED_HERE`. It reads most headers leniently: a number that is none is taken as
absent, and the request is carried out with a null or a 0, or ends in an exception (code 1). Here such a request is
refused: nothing is done on a guess.
"""

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from ledgermq.remoting.codec.codes import RequestCode
from tests.bad_input.cases import Case, Nodes, cases
from tests.fuzz.nodes import NodePair
from tests.fuzz.requests import BY_CODE
from tests.java_store.wire import Answer

_RECORDED: Final = Path(__file__).with_name("answers_5_3_3.tsv")
_WENT_ON: Final = (0, 19, 208, 210)
"""Java took the field as absent and served: done, nothing there now, too late now."""

_EXCEPTIONS: Final[dict[str, tuple[int, str]]] = {
    "B 36 group empty": (16, "the record at 0 is a record of our state, which nobody may send back"),
    "B 36 delayLevel negative": (16, "likewise"),
    "B 36 maxReconsumeTimes negative": (16, "likewise"),
    "B 320 f negative": (0, "host bits of a system flag are ours to set, so -1 is taken without them"),
    "B 324 defaultTopicQueueNums missing": (1, "the field is not needed; nobody waits for this reply"),
    "B 325 d missing": (1, "likewise"),
    "B 3003 username empty": (29, "as an empty name is refused in 3001, 3002 and 3004"),
    "B 3006 subject missing": (16, "the body says whose it is"),
    "B 3006 subject empty": (16, "the body says whose it is"),
    "B 3007 subject missing": (16, "the body says whose it is"),
    "B 3007 subject empty": (16, "the body says whose it is"),
    "B 3008 subject empty": (29, "as other subjects that are none are refused"),
    "B 3009 subject empty": (29, "as other subjects that are none are refused"),
    "N 904 brokerId negative": (22, "no such broker is registered, so it is told to register"),
    "N 904 clusterName empty": (22, "likewise"),
    "N 904 brokerAddr empty": (22, "likewise"),
}
"""Where our code is another one, and why."""

_NEEDED_HERE: Final[dict[str, str]] = {
    "B 321 topic": "RocketMQ makes a queue for each topic that is asked for",
    "N 103 brokerName": "clients would get routes to nowhere, or to a broker without a name",
    "N 103 brokerAddr": "likewise",
    "N 103 clusterName": "likewise",
}
"""Fields that may not be missing or empty, though RocketMQ goes on without them, and why."""


def _recorded() -> dict[str, int | None]:
    with _RECORDED.open() as file:
        rows = csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        return {row[0]: None if row[1] == "-" else int(row[1]) for row in rows}


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    with NodePair(tmp_path_factory.mktemp("nodes")) as pair:
        asked = Nodes(pair.broker_port, pair.nameserver_port)
        asked.prepare()
        yield asked
        asked.close()
        assert not pair.complaints()


@pytest.mark.cluster
def test_every_wrong_field_is_answered_as_rocketmq_answers_it_and_changes_nothing(nodes: Nodes) -> None:
    recorded = _recorded()
    faults = []
    for case in cases():
        answer = nodes.ask(case.request.server, case.request.code, case.fields, case.body)
        fault = _fault(case, answer, recorded[case.name])
        if fault is None and answer is not None and answer.code != 0 and _changes_something(nodes, case):
            fault = "is refused, and changes something"
        if fault is not None:
            faults.append(f"{case.name}: {fault}: {answer}")
    assert faults == [], "\n".join(faults)


@pytest.mark.cluster
def test_every_request_that_is_served_is_among_the_cases(nodes: Nodes) -> None:
    codes = {code for code in vars(RequestCode).values() if isinstance(code, int)}
    for server in "BN":
        answers = {code: nodes.ask(server, code) for code in codes}
        served = {code for code, answer in answers.items() if answer is None or answer.code != 3}
        assert served <= {code for found, code in BY_CODE if found == server}


def _changes_something(nodes: Nodes, case: Case) -> bool:
    """Whether it does each time it is sent: what earlier requests began may end in between."""
    for _ in range(5):
        before = _state(nodes)
        nodes.ask(case.request.server, case.request.code, case.fields, case.body)
        if _state(nodes) == before:
            return False
    return True


def _fault(case: Case, answer: Answer | None, java: int | None) -> str | None:
    if answer is None:
        return "no answer"
    if answer.code == 3:
        return None  # not served, see docs/compatibility.md
    if case.name in _EXCEPTIONS:
        return None if answer.code == _EXCEPTIONS[case.name][0] else f"not {_EXCEPTIONS[case.name]}"
    # a negative number is a number, and no value is none: what Java does with them, it does on no guess
    may_be_refused = case.fault not in ("negative", "missing", "empty", "none") or _place(case) in _NEEDED_HERE
    refused_not_guessed = java in _WENT_ON and answer.code in (1, 29) and may_be_refused
    if answer.code != java and not refused_not_guessed and not (java in _WENT_ON and answer.code in _WENT_ON):
        return f"Java answers {java}"
    is_unreadable = case.fault in ("missing", "text", "beyond") and case.place != "body"
    if is_unreadable and answer.code in (1, 29) and case.place not in answer.remark and not _is_blank(case, answer):
        return "the remark does not name the field"
    if answer.code in (1, 29) and not answer.remark:
        return "no remark"
    return None


def _place(case: Case) -> str:
    return f"{case.request.server} {case.request.code} {case.place}"


def _is_blank(case: Case, answer: Answer) -> bool:
    return case.fault == "missing" and "blank" in answer.remark


def _state(nodes: Nodes) -> list[bytes]:
    """Offsets, topics and groups of the broker, KV and topics of the nameserver."""
    asked = [("B", 43), ("B", 21), ("B", 201), ("N", 206)]
    found = [nodes.ask(server, code) for server, code in asked]
    kv = nodes.ask("N", 219, {"namespace": "FUZZ"})
    return [answer.body for answer in (*found, kv) if answer is not None]
