"""What is shown: a bar on a terminal, lines elsewhere, nothing on request."""

import io

import pytest
import torch
from rich.console import Console

from secateurs_lab.data import from_tensors
from secateurs_lab.models import build
from secateurs_lab.train import Epoch, fit_
from secateurs_lab.train.fit import describe_epoch, progress

LINE = Epoch(
    epoch=3,
    iteration=30,
    loss=0.5,
    test_loss=0.6,
    test_accuracy=0.875,
    learning_rate=0.01,
    seconds=1.25,
)


def shown(terminal: bool, verbose: bool = True) -> str:
    out = io.StringIO()
    with progress(
        30,
        verbose=verbose,
        console=Console(file=out, force_terminal=terminal, width=160),
    ) as show:
        for step in range(1, 31):
            show.step(step)
        show.epoch(LINE)
    return out.getvalue()


def test_one_line_per_epoch_where_there_is_no_terminal():
    assert shown(terminal=False) == "epoch   3  loss 0.5000  accuracy  87.50 %  rate 0.01  1.2 s\n"


def test_a_bar_on_a_terminal():
    assert "30/30" in shown(terminal=True) and "accuracy  87.50 %" in shown(terminal=True)


def test_nothing_on_request():
    assert shown(terminal=True, verbose=False) == shown(terminal=False, verbose=False) == ""


def test_an_epoch_without_evaluation_says_no_accuracy():
    without = Epoch(
        epoch=1,
        iteration=9,
        loss=1,
        test_loss=None,
        test_accuracy=None,
        learning_rate=1,
        seconds=0,
    )
    assert describe_epoch(without) == "epoch   1  loss 1.0000  rate 1  0.0 s"


@pytest.mark.parametrize("verbose", [True, False])
def test_fit_writes_its_lines_to_standard_error_only(capfd, verbose):
    x, y = torch.randn(8, 1, 4, 4), torch.arange(8) % 2
    data = from_tensors("x", train_x=x, train_y=y, test_x=x, test_y=y)
    model = build("lenet-300-100", size=4, classes=2)
    fit_(
        model,
        data,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        length="2ep",
        batch=4,
        verbose=verbose,
    )
    out, err = capfd.readouterr()
    assert out == "" and err.count("\n") == (2 if verbose else 0)
