"""The seeds of a run: a range on the command line, or `corpus.txt`, which has a line for each seed that once failed."""

from pathlib import Path

CORPUS = Path(__file__).with_name("corpus.txt")


def corpus_seeds(*, is_stack: bool) -> list[int]:
    """Return the corpus of whole brokers, or that of Raft nodes alone.

    Raises:
        ValueError: a line is not a comment, nor a kind of nodes with a seed and a reason.
    """
    seeds = []
    for line in CORPUS.read_text().splitlines():
        if line.startswith("#"):
            continue
        words = line.split(maxsplit=2)
        if len(words) < 3 or words[0] not in {"alone", "whole"} or not words[1].isdecimal():
            raise ValueError(f"{CORPUS.name}: {line!r} is not alone|whole SEED REASON")
        if (words[0] == "whole") == is_stack:
            seeds.append(int(words[1]))
    return seeds


def seed_range(text: str) -> range:
    """Return the seeds of the argument `A:B`: A up to B - 1. Raises ValueError if it is no such range."""
    first, _, end = text.partition(":")
    return range(int(first), int(end))
