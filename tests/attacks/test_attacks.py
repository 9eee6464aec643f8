"""A slice of the attacks (ATTACKS=all: every one); `python -m tests.attacks` prints the table of docs/security.md."""

import os
from pathlib import Path
from typing import Final

import pytest

from tests.attacks.attacks import ATTACKS
from tests.attacks.judge import faults
from tests.attacks.scene import scene

_SLICE: Final = ("held-pulls-one", "nameserver")
_CHOSEN: Final = tuple(ATTACKS) if os.environ.get("ATTACKS") == "all" else _SLICE


@pytest.mark.cluster
@pytest.mark.parametrize("name", _CHOSEN)
def test_an_attack_costs_no_more_than_it_may(tmp_path: Path, name: str) -> None:
    attack = ATTACKS[name]
    with scene(tmp_path, attack.descriptors, attack.topics) as made:
        toll = made.suffer(attack.run)
    print(toll)
    assert not faults(attack, toll)
