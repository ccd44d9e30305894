"""The study of a ResNet-20 on CIFAR-10: its network, and its command on a smaller one."""

from dataclasses import replace

import pytest
import torch

from experiments import cifar
from secateurs_lab.models import build
from secateurs_lab.study import Gradual, Training


def test_the_network_is_the_usual_one_stored_otherwise():
    ours = cifar.resnet_20(torch.Generator().manual_seed(3))
    usual = build("resnet-20", classes=10, generator=torch.Generator().manual_seed(3))
    for one, other in zip(ours.parameters(), usual.parameters(), strict=True):
        assert torch.equal(one, other)
    assert ours.conv.weight.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("epochs", cifar.STUDIES)
def test_the_command_begins_a_study_and_goes_on_with_it(epochs, tmp_path, monkeypatch, capsys):
    small = replace(
        cifar.STUDIES[epochs],
        model="lenet-300-100",
        data="digits",
        methods=(Gradual(every="1it"),),
        train=Training(length="1ep"),
    )
    monkeypatch.setitem(cifar.STUDIES, epochs, small)
    command = ["cifar", str(tmp_path / "small"), "--epochs", str(epochs)]
    monkeypatch.setattr("sys.argv", command)
    cifar.main()
    first = capsys.readouterr().out
    shown = ["dense", *("gradual" for _ in small.compressions)]
    assert [line.split()[0] for line in first.splitlines()] == shown
    cifar.main()
    assert capsys.readouterr().out == first


def test_sixty_epochs_ask_for_five_strengths_of_either_depth():
    runs = cifar.SIXTY.runs()
    for depth in (2, 3):
        asked = [run.method for run in runs if run.method.kind == "dwf"]
        strengths = {each.strength for each in asked if each.depth == depth}
        assert len(strengths) == 5
    assert {run.train.length for run in runs} == {"60ep"}
    # Every other method at the same compressions.
    asked = [run.compression for run in runs if run.method.kind not in ("dense", "dwf")]
    assert sorted(asked) == sorted([10.0, 20.0, 50.0] * 6)
