"""Scenarios of the protocol as text that a reviewer can read: `testdata/*.txt`, replayed."""

from pathlib import Path

import pytest

from tests.dledger.core.core_script import Script
from tests.dledger.core.datadriven import Step, parse, render, replay

TRANSCRIPTS = sorted((Path(__file__).parent / "testdata").glob("*.txt"))


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_transcript_is_what_the_nodes_do(path: Path, request: pytest.FixtureRequest) -> None:
    replay(path, Script().run, rewrite=bool(request.config.getoption("--rewrite")))


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_transcript_opens_with_a_sentence_of_intent(path: Path) -> None:
    first = path.read_text().splitlines()[0]
    assert first.startswith("# ") and len(first) > 20


def test_there_are_a_dozen_scenarios_and_more() -> None:
    assert len(TRANSCRIPTS) >= 12


def test_rendering_a_transcript_and_parsing_it_again_changes_nothing() -> None:
    steps = [Step("# Why.", "a b c=1", "one\ntwo"), Step("", "d", ""), Step("# More.", "e", "ok")]
    assert parse(render(steps)) == steps


def test_a_wrong_transcript_fails(tmp_path: Path) -> None:
    path = tmp_path / "wrong.txt"
    path.write_text("# What is expected is not what happens.\ngroup n1\n----\nnot this\n")
    with pytest.raises(AssertionError, match=r"wrong\.txt: group n1"):
        replay(path, Script().run, rewrite=False)
    replay(path, Script().run, rewrite=True)
    replay(path, Script().run, rewrite=False)
