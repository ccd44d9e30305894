"""A method of one's own: trained by its own trainer, on any executor, under a key of its text."""

from dataclasses import dataclass

import pytest
import torch

from secateurs.errors import ArgumentError
from secateurs_lab.study import Data, Method, Prune, Study, Trainer, Training, run
from secateurs_lab.study.jobs import Interrupted, MemoryContext
from secateurs_lab.study.measure import Bench
from secateurs_lab.study.stages import perform


def noisy(size):
    """The method as a class of its own each time, with this number in its trainer."""

    @dataclass(frozen=True, kw_only=True)
    class Noisy(Method):
        kind = "noisy"

        @staticmethod
        def trainer(job):
            optimizer, numbers = job.optimizer(), job.source("noise")

            def add(*_):
                for weight in job.model.parameters():
                    weight.grad += size * torch.randn(weight.shape, generator=numbers)

            optimizer.register_step_pre_hook(add)
            return Trainer(
                optimizer=optimizer,
                state=lambda: ({"noise": numbers.get_state()}, {}),
                restore_=lambda tensors, values: numbers.set_state(tensors["noise"]),
            )

    return Noisy()


def study(*methods):
    return Study(
        model="lenet-300-100", data=Data(name="digits", train=128, test=20), methods=methods,
        compressions=[4], train=Training(length="2ep", batch=64),
    )  # fmt: skip


def test_an_own_method_is_trained_here_and_in_a_worker(tmp_path):
    own = study(noisy(0.1), Prune(after=noisy(0.1), label="cut"))
    with run(own, tmp_path / "s") as here, run(own, tmp_path / "t", engine="local") as there:
        rows = here.rows()
        assert [row.state for row in rows] == ["done"] * 3, [row.reason for row in rows]
        assert [row.result() for row in there.rows()] == [row.result() for row in rows]
    dense, noise, _ = rows
    assert dense.weights_hash != noise.weights_hash


def test_what_its_trainer_uses_is_in_the_key():
    one, same, other = (study(noisy(size)).runs()[1].key for size in (0.1, 0.1, 0.2))
    assert one == same != other


def test_it_is_resumed_bit_for_bit():
    class Leaving(MemoryContext):
        def stopping(self):
            return True

    one = study(noisy(0.1)).runs()[1]
    bench = Bench(device="cpu")
    whole, context = perform(one, bench, MemoryContext()), Leaving()
    for _ in range(3):
        with pytest.raises(Interrupted):
            perform(one, bench, context)
    assert perform(one, bench, MemoryContext(blobs=context.blobs)).result() == whole.result()


@dataclass(frozen=True, kw_only=True)
class Silent(Method):
    kind = "silent"


@dataclass(frozen=True, kw_only=True)
class Nameless(Method):
    trainer = staticmethod(lambda job: Trainer(optimizer=job.optimizer()))


@pytest.mark.parametrize(
    ("method", "told"),
    [(Silent(), "Silent does not say how it is trained.*trainer"), (Nameless(), "needs a name")],
)
def test_what_is_missing_is_told_before_the_first_run(method, told):
    with pytest.raises(ArgumentError, match=told):
        study(method)
