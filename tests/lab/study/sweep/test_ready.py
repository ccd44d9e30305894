"""What would fail in every run is refused before the first, and leaves no folder behind."""

import threading

import pytest
import torch
from torch import nn

from secateurs.errors import ArgumentError
from secateurs_lab.study import Data, Study, Training, run

TINY = Data(name="digits", train=64, test=20)


@pytest.mark.parametrize("device", ["gpu", "cuda:99", "meta:x"])
def test_a_device_that_is_not_there_is_refused_at_once(tmp_path, device):
    with pytest.raises(ArgumentError, match="cannot be used here.*Leave it out"):
        run(Study(data=TINY), tmp_path / "s", device=device)
    assert not (tmp_path / "s").exists()


def test_a_function_that_no_worker_can_be_sent_is_refused(tmp_path):
    lock = threading.Lock()

    def inner(model, data):
        with lock:
            return 1.0

    with pytest.raises(ArgumentError, match="inner cannot be sent .*engine='in-process'"):
        run(Study(data=TINY, metrics={"one": inner}), tmp_path / "s", engine="local")
    assert not (tmp_path / "s").exists()


def test_a_function_without_a_name_is_sent_to_workers(tmp_path):
    def inner(model, data):
        return 1.0

    given = {"model": lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10))}
    study = Study(data=TINY, train=Training(length="1it"), metrics={"one": inner}, **given)
    with run(study, tmp_path / "s", engine="local") as store:
        (row,) = store.rows()
    assert row.state == "done" and row.metrics["own.one"] == 1.0, row.reason


def test_a_module_is_no_function_that_makes_one():
    with pytest.raises(ArgumentError, match="a Linear that exists already.*function"):
        Study(model=nn.Linear(2, 2))


def test_tensors_are_named_with_what_makes_a_data_set_of_them():
    with pytest.raises(
        ArgumentError, match=r"data\[1\]: a Tensor is neither.*from_tensors"
    ) as error:
        Study(data=[torch.zeros(1000, 3)])
    assert len(str(error.value)) < 300


def test_a_metric_that_fails_is_named(tmp_path):
    def broken(model, data):
        raise ValueError("no")

    study = Study(data=TINY, train=Training(length="1it"), metrics={"mine": broken})
    with run(study, tmp_path / "s") as store:
        (row,) = store.rows()
    assert row.state == "failed"
    assert "the metric 'mine' failed: ValueError: no" in row.reason
