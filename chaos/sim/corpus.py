"""The seeds of a run: a range on the command line, or a corpus: a file with a line for each seed that once failed."""

from pathlib import Path

ALONE = Path(__file__).with_name("corpus.txt")
STACK = Path(__file__).with_name("stack") / "corpus.txt"


def corpus_seeds(corpus: Path) -> list[int]:
    """Return the seeds of a corpus.

    Raises:
        ValueError: a line is not a comment, nor a seed with a reason.
    """
    seeds = []
    for line in corpus.read_text().splitlines():
        if not line.startswith("#"):
            seed, _, reason = line.partition(" ")
            if not (seed.isdecimal() and reason):
                raise ValueError(f"{corpus}: {line!r} is not SEED REASON")
            seeds.append(int(seed))
    return seeds


def name_of(corpus: Path) -> str:
    """Return the name of a corpus as shown to people: its path in the repository."""
    return str(corpus.relative_to(Path(__file__).parents[2]))


def seed_range(text: str) -> range:
    """Return the seeds of the argument `A:B`: A up to B - 1. Raises ValueError if it is no such range."""
    first, _, end = text.partition(":")
    return range(int(first), int(end))
