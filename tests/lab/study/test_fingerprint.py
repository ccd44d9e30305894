"""Own networks: what behaves otherwise has another key, and what is equal has the same."""

import os
import random
import subprocess
import sys
import tempfile
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from lab.study import own_networks
from lab.study.own_networks import FAMILIES, closure
from secateurs.errors import ArgumentError
from secateurs_lab.data import from_tensors
from secateurs_lab.study import Data, Dense, Net, Prune, Run, Study, Training, run
from secateurs_lab.study.fingerprint import fingerprint

SHAPE = (1, 8, 8)


def key(make, data="digits", method=None):
    return Run(
        data=Data.read(data), model=Net.read(make), method=method or Dense(), train=Training()
    ).key


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__)
def test_other_behaviour_is_another_key_and_equal_behaviour_the_same(family):
    zero, one, again = family(0.0), family(1.0), family(1.0)
    assert key(one) == key(again) == key(one) != key(zero)


PRINT = """
import sys
from lab.study import own_networks
from lab.study.test_fingerprint import key
for name in sys.argv[1:]:
    print(key(getattr(own_networks, name)(0.7)))
"""


def test_a_key_is_the_same_in_every_process_and_with_any_number_of_threads():
    names = ["settings", "tensor", "own_precision", "class_attribute"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": "7"}
    told = subprocess.run(
        [sys.executable, "-c", PRINT, *names],
        capture_output=True, text=True, check=True, env={**env, "OMP_NUM_THREADS": "2"},
    )  # fmt: skip
    assert told.stdout.split() == [key(getattr(own_networks, name)(0.7)) for name in names]


def test_a_constant_that_was_changed_since_is_another_key():
    make = own_networks.module_constant(1.0)
    before = key(make)
    make.__globals__["K"] = 0.5
    assert key(make) != before
    make.__globals__["K"] = 1.0
    assert key(make) == before


def test_the_shape_of_the_data_decides():
    """The same bytes as images of another shape."""
    x, y = torch.rand(40, 1, 8, 8), torch.arange(40) % 10
    flat = x.view(40, 64, 1, 1)
    square, table = (
        from_tensors("own", train_x=d, train_y=y, test_x=d[:8], test_y=y[:8]) for d in (x, flat)
    )
    assert key("lenet-300-100", square) != key("lenet-300-100", table)
    made = Data(name="own", make=lambda: square)
    assert key(closure(1.0), square) == key(closure(1.0), made) != key(closure(1.0), table)


def test_an_own_score_counts_with_its_values():
    def score(k):
        return lambda *tensors, **more: k

    keys = [key("lenet-5", method=Prune(score=score(k), after="init")) for k in (1, 1, 2)]
    assert keys[0] == keys[1] != keys[2]


def test_a_network_is_drawn_from_the_seed_however_it_draws(tmp_path):
    def by_keyword(width=8, *, generator):
        made = own_networks.Net(width=width)
        nn.init.normal_(made.a.weight, generator=generator)
        return made

    for make in (by_keyword, lambda width=8: own_networks.Net(width=width), own_networks.Net):
        study = Study(model=make, methods=[], train=Training(length="1it"), seeds=(0, 1))
        hashes = []
        for _ in range(2):
            with run(study, tempfile.mkdtemp(dir=tmp_path)) as store:
                hashes.append([row.weights_hash for row in store.rows()])
        assert hashes[0] == hashes[1] and len(set(hashes[0])) == 2


def test_what_cannot_be_repeated_is_refused():
    def drawn():
        made = own_networks.Net()
        made.k = nn.Parameter(torch.tensor(np.random.rand()))
        return made

    held = own_networks.Net()
    with pytest.raises(ArgumentError, match="drawn returns something else each time.*generator"):
        key(drawn)
    for make in (lambda: held, lambda: nn.Sequential(held, nn.Linear(10, 10))):
        with pytest.raises(ArgumentError, match="the same weights each time.*copy.deepcopy"):
            key(make)
    with pytest.raises(ArgumentError, match=r"needs size, .*partial\(net, size=...\)"):
        key(_needs_size())


def _needs_size():
    def net(size, generator):
        return own_networks.Net()

    net.__qualname__ = "net"
    return net


def test_a_function_that_keeps_count_of_its_calls_keeps_its_key():
    calls, cache = [], {}

    def make():
        calls.append(1)
        cache[len(calls)] = torch.zeros(3)
        return own_networks.Net()

    assert key(make) == key(make)


def test_a_network_that_does_not_run_has_a_key_and_its_run_says_why():
    def make():
        return nn.Linear(3, 3)

    assert (
        fingerprint(make, SHAPE) == fingerprint(make, None) != fingerprint(own_networks.Net, SHAPE)
    )


@pytest.mark.slow
def test_two_thousand_draws_of_families_and_values():
    """Keys are equal exactly where family and value are."""
    draw = random.Random(0)
    seen: dict[str, tuple[str, float]] = {}
    for _ in range(2000):
        family, k = draw.choice(FAMILIES), draw.choice([0.0, 1e-3, 0.1, 0.5, 0.7, 0.701, 1.0])
        made = key(family(k))
        # Widths are whole numbers.
        what = family.__name__, round(10 * k) if family is own_networks.width else k
        assert seen.setdefault(made, what) == what
    assert len(set(seen.values())) == len(seen)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__)
def test_a_store_gives_nobody_the_results_of_another(family, tmp_path):
    """Studies of three networks in one folder, and each in its own."""
    study = Study(data=Data(name="digits", train=256, test=50), methods=[])
    study = replace(study, train=Training(length="1ep", batch=64))

    def result(k, folder):
        with run(replace(study, model=(Net.read(family(k)),)), folder) as store:
            return [(row.key, row.state, row.weights_hash, row.accuracy) for row in store.rows()]

    shared = [result(k, tmp_path / "shared") for k in (0.2, 0.9, 0.2)]
    assert shared[0] == shared[2] != shared[1]
    assert shared[:2] == [result(k, tmp_path / str(k)) for k in (0.2, 0.9)]
