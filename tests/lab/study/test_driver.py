"""A study as an engine sees it: what is saved replaces what was saved before."""

import pytest

from secateurs_lab.study import Data, Dense, Prune, Store, Study, Training
from secateurs_lab.study.sweep import sweep_of


@pytest.fixture
def sweep(tmp_path):
    study = Study(
        model="lenet-300-100",
        data=Data(name="digits", train=64, test=50),
        methods=[Dense(), Prune()],
        compressions=[4],
        train=Training(length="1ep", batch=64),
    )
    with Store.create(tmp_path / "s") as store:
        yield sweep_of(study, store)


def test_a_checkpoint_replaces_the_one_before(sweep):
    held, _ = sweep.next("worker")
    files = sweep.store.artefacts
    first, second = files.put(b"first"), files.put(b"second")
    assert sweep.hold(held, "checkpoint", first)
    assert sweep.hold(held, "checkpoint", second)
    assert not files.path(first).exists() and files.path(second).exists()
    # The same bytes once more: the file must stay.
    assert sweep.hold(held, "checkpoint", second)
    assert files.path(second).exists()
    assert sweep.store.held(held.key) == {"checkpoint": second}


def test_who_has_lost_the_lease_deletes_nothing(sweep):
    held, _ = sweep.next("worker")
    files = sweep.store.artefacts
    first, late = files.put(b"first"), files.put(b"late")
    assert sweep.hold(held, "checkpoint", first)
    sweep.give_back(held.key)
    assert not sweep.hold(held, "checkpoint", late)
    assert files.path(first).exists()
