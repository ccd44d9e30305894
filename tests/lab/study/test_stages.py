"""Whatever a network of the user's own does, its run has an end and the others go on."""

import sys

from torch import nn

from secateurs_lab.study import Data, Prune, Study, Training, run


class Leaves(nn.Module):
    """A network that ends the program."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(64, 10)

    def forward(self, x):
        sys.exit(3)


class Pair(Leaves):
    def forward(self, x):
        return self.last(x.flatten(1)), x


def leaving():
    return Leaves()


def paired():
    return Pair()


def ends(make, folder):
    study = Study(
        data=Data(name="digits", train=64, test=50),
        model=make,
        methods=[Prune(after="init")],
        compressions=[4],
        train=Training(length="1ep"),
    )
    with run(study, folder) as store:
        return [(row.state, row.reason) for row in store.rows()]


def test_a_network_that_ends_the_program_ends_its_run_alone(tmp_path):
    (first, reason), *_ = found = ends(leaving, tmp_path / "s")
    assert first == "failed" and "sys.exit(3)" in reason
    assert len(found) == 2


def test_a_network_of_several_outputs_says_what_to_do(tmp_path):
    (first, reason), *_ = ends(paired, tmp_path / "s")
    assert first == "failed" and "returns a tuple, not one tensor" in reason
