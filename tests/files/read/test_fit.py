"""Files of compacted models load into the original class, under the original keys."""

import pytest
import torch
from torch import nn

from architectures import BasicBlock, ResNet, lenet_5, lenet_300_100
from secateurs.channels import compact
from secateurs.errors import SparseFileError
from secateurs.files import load_sparse, save_sparse


def dead(model, share=0.5):
    """The model with some of the output channels of every inner layer cut, biases kept."""
    torch.manual_seed(0)
    layers = [m for m in model.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    for layer in layers[:-1]:
        layer.weight.data[torch.rand(len(layer.weight)) < share] = 0
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_mean)
            nn.init.uniform_(module.bias)
    return model.eval()


class Depthwise(nn.Module):
    """Depthwise, grouped and transposed convolutions, without biases of their own."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.depth = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.last = nn.Conv2d(8, 4, 1, bias=False)
        self.up = nn.ConvTranspose2d(4, 3, 2, stride=2)

    def forward(self, x):
        return self.up(torch.relu(self.last(torch.relu(self.depth(torch.relu(self.first(x)))))))


CASES = {
    "lenet-300-100": (lenet_300_100, (1, 1, 28, 28)),
    "lenet-5": (lenet_5, (1, 1, 28, 28)),
    "resnet-20": (lambda: ResNet(BasicBlock, (3, 3, 3), classes=10, base=16), (1, 3, 32, 32)),
    "depthwise": (Depthwise, (1, 3, 8, 8)),
}


@pytest.mark.parametrize("name", list(CASES))
def test_a_compacted_model_loads_into_the_original_class(name, tmp_path):
    make, shape = CASES[name]
    model, x, path = dead(make()), torch.randn(shape), tmp_path / "m.safetensors"
    small = compact(model, x)
    save_sparse(small, path)
    loaded = load_sparse(path, into=make()).eval()
    assert sum(p.numel() for p in loaded.parameters()) < sum(p.numel() for p in model.parameters())
    assert set(loaded.state_dict()) == set(small.state_dict())
    with torch.no_grad():
        assert torch.equal(loaded(x), small(x))
    assert [repr(m) for m in loaded.modules() if not list(m.children())] == [
        repr(m) for m in small.modules() if not list(m.children())
    ]


def test_shapes_that_do_not_fit_inside_are_refused(tmp_path):
    path = tmp_path / "m.safetensors"
    save_sparse(nn.Linear(5, 2), path)
    with pytest.raises(SparseFileError, match="'weight' is \\[2, 5\\] in the file and \\[2, 4\\]"):
        load_sparse(path, into=nn.Linear(4, 2))


def test_dense_checkpoints_narrow_nothing(tmp_path):
    from safetensors.torch import save_file

    save_file(nn.Linear(3, 2).state_dict(), tmp_path / "dense.safetensors")
    with pytest.raises(SparseFileError, match="'weight' is \\[2, 3\\] in the file and \\[2, 4\\]"):
        load_sparse(tmp_path / "dense.safetensors", into=nn.Linear(4, 2))
