"""A page is made in pieces whose size, and in turns whose work, is bounded by counts; everybody gets all of it."""

import asyncio
import gzip
from collections.abc import AsyncIterator, Iterator

import pytest

from telemetry.families import Buckets, Collector, Family, Labels, Row, TextWriter
from telemetry.pages import LINES_A_PIECE, STEPS_A_TURN, Section, SharedPage, compressed, pieces

MANY = 20_000
BOUNDS = (1, 2.5)


def section(*families: Family | None, writer: TextWriter | None = None, rows_max: int = MANY) -> Section:
    return Section([families], writer or TextWriter(), rows_max)


def row(number: int) -> Row:
    return (("topic", f"t{number}"),), number


async def text_of(source: AsyncIterator[bytes]) -> str:
    return b"".join([piece async for piece in source]).decode()


class Turns:
    """Counts turns of the loop, and the most work that was done in one."""

    def __init__(self) -> None:
        self.turns = self.most = self._done = 0
        self._handle = asyncio.get_running_loop().call_soon(self._turn)

    def step(self) -> None:
        self._done += 1
        self.most = max(self.most, self._done)

    def _turn(self) -> None:
        self._done = 0
        self.turns += 1
        self._handle = asyncio.get_running_loop().call_soon(self._turn)

    def stop(self) -> None:
        self._handle.cancel()


@pytest.mark.parametrize("has_rows", [True, False], ids=["rows", "steps without rows"])
async def test_no_turn_of_the_loop_does_more_than_a_bounded_count_of_steps(has_rows: bool) -> None:
    turns = Turns()

    def rows() -> Iterator[Row | None]:
        for number in range(MANY):
            turns.step()
            yield row(number) if has_rows else None

    text = await text_of(pieces(section(Family("a", "gauge", "A.", rows()))))
    turns.stop()
    assert text.count("\na{") == (MANY if has_rows else 0)
    assert turns.most <= STEPS_A_TURN
    assert turns.turns >= MANY // STEPS_A_TURN


async def test_steps_of_a_collector_between_its_families_are_bounded_too() -> None:
    turns = Turns()

    def collector() -> Collector:
        for _ in range(MANY):
            turns.step()
            yield None
        yield Family("a", "gauge", "A.", [row(1)])

    assert await text_of(pieces(Section([collector()], TextWriter(), MANY))) == (
        '# HELP a A.\n# TYPE a gauge\na{topic="t1"} 1\n'
    )
    turns.stop()
    assert turns.most <= STEPS_A_TURN


async def test_a_piece_has_a_bounded_count_of_lines_and_a_family_one_head() -> None:
    buckets = Buckets(BOUNDS, (1, 2, 3), 9.5)
    plain = Family("a", "gauge", "A.", (row(number) for number in range(MANY)))
    spread = Family("b", "histogram", "B.", (((("topic", f"t{number}"),), buckets) for number in range(1000)))
    found = [piece.decode() async for piece in pieces(section(plain, spread))]
    most_heads = 2 * 2
    assert max(piece.count("\n") for piece in found) < LINES_A_PIECE + len(buckets.counts) + 2 + most_heads
    assert len(found) > (MANY + 5 * 1000) // (LINES_A_PIECE + 5)
    text = "".join(found)
    assert text.count("# TYPE") == 2
    assert text.count("\n") == 4 + MANY + 1000 * 5
    assert (
        'b_bucket{topic="t0",le="1.0"} 1\nb_bucket{topic="t0",le="2.5"} 3\nb_bucket{topic="t0",le="+Inf"} 6\n' in text
    )


async def test_rows_beyond_the_limit_and_families_without_rows_are_not_shown() -> None:
    shown = await text_of(
        pieces(section(Family("a", "gauge", "A.", map(row, range(9))), Family("b", "gauge", "B.", []), rows_max=4))
    )
    assert shown.count("\na{") == 4
    assert "# TYPE b" not in shown


ODD = 'a"b\\c\nd%s'


@pytest.mark.parametrize(
    ("labels", "text"),
    [
        ((), 'a{common="%d \\\\"} 1'),
        ((("topic", "t"),), 'a{common="%d \\\\",topic="t"} 1'),
        ((("topic", ODD), ("b", "x")), 'a{common="%d \\\\",topic="a\\"b\\\\c\\nd%s",b="x"} 1'),
    ],
)
async def test_labels_are_escaped_wherever_they_come_from(labels: Labels, text: str) -> None:
    writer = TextWriter((("common", "%d \\"),))
    assert text in await text_of(pieces(section(Family("a", "gauge", "A.", [(labels, 1)]), writer=writer)))


async def test_with_a_scope_all_labels_are_in_the_order_of_the_alphabet() -> None:
    writer = TextWriter((("node", "n"), ("cluster", "c")), scope="s")
    family = Family("a", "gauge", "A.", [((("zone", "z"), ("broker", "b")), 1)])
    assert 'a{otel_scope_name="s",broker="b",cluster="c",node="n",zone="z"} 1\n' in await text_of(
        pieces(section(family, writer=writer))
    )


class Source:
    """A page that goes on when it is told to."""

    def __init__(self) -> None:
        self.made = 0
        self.may_go_on = asyncio.Event()
        self.page = SharedPage(self._make)

    async def _make(self) -> AsyncIterator[bytes]:
        self.made += 1
        yield b"first,"
        await self.may_go_on.wait()
        yield f"second of {self.made}".encode()


async def test_the_first_piece_is_given_before_the_last_is_made() -> None:
    source = Source()
    reader = source.page.read()
    assert await anext(reader) == b"first,"
    source.may_go_on.set()
    assert await anext(reader) == b"second of 1"


async def test_who_asks_while_a_page_is_made_gets_all_of_the_same_and_who_asks_later_a_new_one() -> None:
    source = Source()
    early, late = source.page.read(), source.page.read()
    assert await anext(early) == b"first,"
    source.may_go_on.set()
    assert [await text_of(early), await text_of(late)] == ["second of 1", "first,second of 1"]
    assert await text_of(source.page.read()) == "first,second of 2"


async def test_a_page_is_made_to_its_end_for_others_when_one_reader_goes() -> None:
    source = Source()
    gone, other = source.page.read(), source.page.read()
    await anext(gone)
    await gone.aclose()  # type: ignore[attr-defined] # a generator
    source.may_go_on.set()
    assert await text_of(other) == "first,second of 1"


async def test_every_reader_hears_why_a_page_could_not_be_made_and_the_next_is_tried_anew() -> None:
    fails = [True]

    async def make() -> AsyncIterator[bytes]:
        yield b"begun"
        if fails.pop():
            raise OSError("gone")

    page = SharedPage(make)
    for reader in (page.read(), page.read()):
        assert await anext(reader) == b"begun"
        with pytest.raises(OSError, match="gone"):
            await anext(reader)
    fails.append(False)
    assert await text_of(page.read()) == "begun"


async def test_what_is_compressed_is_the_same_page() -> None:
    family = Family("a", "gauge", "A.", map(row, range(3000)))
    packed = [piece async for piece in compressed(pieces(section(family)))]
    assert gzip.decompress(b"".join(packed)).decode().splitlines()[-1] == 'a{topic="t2999"} 2999'
