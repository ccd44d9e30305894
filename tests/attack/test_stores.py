"""Folders of studies from elsewhere: nothing outside of them, and nothing of others inside, is
changed.
"""

import pytest

from attack.stores import Tally, attack_store, honest_store


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    return honest_store(tmp_path_factory.mktemp("honest") / "honest.study")


def attack(seeds, honest, root) -> Tally:
    tally = Tally()
    for seed in seeds:
        attack_store(seed, honest, root, tally)
    assert not tally.violations, tally.violations
    return tally


def test_no_folder_of_a_study_changes_what_is_not_ours(honest, tmp_path):
    tally = attack(range(30), honest, tmp_path)
    # The attack would show nothing if every folder were refused at once.
    assert tally.ends["resume", "done"] > 3 and tally.ends["resume", "StoreError"] > 10


@pytest.mark.slow
def test_two_hundred_folders(honest, tmp_path):
    attack(range(30, 230), honest, tmp_path)
