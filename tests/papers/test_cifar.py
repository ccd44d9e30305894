"""The study of a ResNet-20 on CIFAR-10: its network, and its command on a smaller one."""

from dataclasses import replace

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


def test_the_command_begins_a_study_and_goes_on_with_it(tmp_path, monkeypatch, capsys):
    small = replace(
        cifar.SPARSE,
        model="lenet-300-100",
        data="digits",
        methods=(Gradual(every="1it"),),
        train=Training(length="1ep"),
    )
    monkeypatch.setattr(cifar, "SPARSE", small)
    monkeypatch.setattr("sys.argv", ["cifar", str(tmp_path / "small")])
    cifar.main()
    first = capsys.readouterr().out
    assert [line.split()[0] for line in first.splitlines()] == ["dense", "gradual"]
    cifar.main()
    assert capsys.readouterr().out == first
