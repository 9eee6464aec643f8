"""The pages tell the truth where a machine can check it: links lead somewhere, commands and keys exist."""

import re
from pathlib import Path

import pytest

from cli.main import build_parser
from node.keys import BROKER_KEYS, NAMESRV_KEYS

PROJECT = Path(__file__).resolve().parent.parent.parent
PAGES = [PROJECT / "README.md", *sorted((PROJECT / "docs").glob("*.md")), PROJECT / "benchmarks" / "README.md"]
TARGETS = set(re.findall(r"^([a-z-]+):", (PROJECT / "Makefile").read_text(), re.MULTILINE))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_relative_link_leads_to_a_file(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text())
    missing = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_source_file_that_a_page_names_is_there(page: Path) -> None:
    named = re.findall(r"`((?:[a-z_]+/)+[a-z_]+\.(?:py|tsv))`", page.read_text())
    assert [name for name in named if not (PROJECT / name).exists()] == []


def test_every_module_that_a_map_of_a_room_names_is_there() -> None:
    rooms = [path.parent for path in PROJECT.glob("*/__init__.py")]
    modules = {path.stem for room in rooms for path in room.rglob("*.py")}
    missing = []
    for room in ("broker", "dledger", "store"):
        text = (PROJECT / room / "__init__.py").read_text().split('"""')[1]
        named = set(re.findall(r"\b[a-z]+(?:_[a-z]+)+\b", text))
        missing += [f"{room}: {name}" for name in named - modules]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_make_target_that_a_page_names_exists(page: Path) -> None:
    named = set(re.findall(r"`make ([a-z-]+)", page.read_text()))
    assert named <= TARGETS


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_line_that_a_page_shows_is_understood(page: Path) -> None:
    lines = re.findall(r"^ledgermq (.*?)(?:\s+#.*)?$", page.read_text(), re.MULTILINE)
    for line in lines:
        words = [word for word in re.sub(r"\[.*?\](\.\.\.)?", "", line).split() if word != "..."]
        build_parser().parse_args(words)


def test_every_key_that_the_operations_page_shows_is_known() -> None:
    shown = re.findall(r"^(\w+)=", (PROJECT / "docs" / "operations.md").read_text(), re.MULTILINE)
    assert shown
    assert [key for key in shown if key not in {**BROKER_KEYS, **NAMESRV_KEYS}] == []


def test_no_page_has_a_gap_left_to_fill() -> None:
    assert [page.name for page in PAGES if re.search(r"@[A-Z]+@|\bTODO\b", page.read_text())] == []
