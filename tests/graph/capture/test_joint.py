"""Two models match by what they compute: every literal counts, where weights come from does not."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize, prune

import secateurs as sc
from secateurs.errors import StructureMismatch

INDEX = (torch.tensor([0, 1]), torch.tensor([2, 3]))


class Literal(nn.Module):
    """A layer, a function with one literal, a layer that reads two or four values."""

    def __init__(self, function, literal, width: int) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 4), nn.Linear(width, 2)
        self.p, self.w = nn.Parameter(torch.ones(4)), nn.Parameter(torch.randn(4, 4))
        # No value is cut off, so that every literal matters.
        nn.init.constant_(self.a.bias, 2.0)
        self.function, self.literal = function, literal
        if isinstance(literal, Tensor):
            self.register_buffer("index", literal)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.a(x))
        return self.b(self.function(self, h, getattr(self, "index", self.literal)))


CASES = {
    "index-list": (lambda m, h, c: h[:, c], [0, 1], [2, 3], 2),
    "index-buffer": (lambda m, h, c: h[:, c], *INDEX, 2),
    "index-select": (lambda m, h, c: h.index_select(1, c), *INDEX, 2),
    "slice": (lambda m, h, c: h[:, c : c + 2], 0, 2, 2),
    "select": (lambda m, h, c: h[:, c].unsqueeze(1).expand(-1, 2), 0, 1, 2),
    "roll": (lambda m, h, c: h.roll(c, 1), 1, 2, 4),
    "permute": (
        lambda m, h, c: h.view(-1, 2, 2).permute(*c).flatten(1),
        (0, 1, 2),
        (0, 2, 1),
        4,
    ),
    "add-alpha": (lambda m, h, c: torch.add(h, m.p, alpha=c), 2, 5, 4),
    "addmm-beta": (lambda m, h, c: torch.addmm(m.p, h, m.w, beta=c), 1, 3, 4),
    "addmm-alpha": (lambda m, h, c: torch.addmm(m.p, h, m.w, alpha=c), 1, 3, 4),
    "weight-chunk": (lambda m, h, c: F.linear(h, m.w.chunk(2)[c]), 0, 1, 2),
    "weight-power": (lambda m, h, c: F.linear(h, m.w.pow(c)), 1, 2, 4),
    "factor": (lambda m, h, c: h * c, 2.0, 3.0, 4),
    "divisor": (lambda m, h, c: h / c, 2, 3, 4),
    "constant": (lambda m, h, c: h + c, 0.0, 0.25, 4),
    "slope": (lambda m, h, c: F.leaky_relu(h - 2, c), 0.1, 0.3, 4),
    "pad-value": (lambda m, h, c: F.pad(h[:, :2], (1, 1), value=c), 0.0, 0.5, 4),
    "pad-side": (lambda m, h, c: F.pad(h[:, :2], c), (2, 0), (0, 2), 4),
    "clamp-side": (lambda m, h, c: (h - 2).clamp(**{c: 0}), "min", "max", 4),
    "dilation": (
        lambda m, h, c: F.max_pool1d(F.pad(h.unsqueeze(1), (0, 2)), 2, 1, 0, c)[..., :4].squeeze(1),
        1,
        2,
        4,
    ),
    "count-pad": (
        lambda m, h, c: F.avg_pool1d(h.unsqueeze(1), 3, 1, 1, False, c).squeeze(1),
        True,
        False,
        4,
    ),
    "flip": (lambda m, h, c: h.view(-1, 2, 2).flip((c,)).flatten(1), 1, 2, 4),
    "gather": (
        lambda m, h, c: torch.gather(h, 1, c.expand(h.shape[0], -1)),
        torch.tensor([[0, 1]]),
        torch.tensor([[1, 0]]),
        2,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_one_literal_makes_another_network(name):
    """A bound that covers the true difference, or a refusal; never a zero."""
    function, one, two, width = CASES[name]
    dense = Literal(function, one, width).double().eval()
    sparse = Literal(function, two, width).double().eval()
    own = {k: v for k, v in dense.state_dict().items() if k != "index"}
    sparse.load_state_dict(own, strict=False)
    x = 2 * torch.rand(200, 3, dtype=torch.float64) - 1
    with torch.no_grad():
        true = float((dense(x) - sparse(x)).abs().max())
    assert true > 1e-6
    box = (-torch.ones(1, 3), torch.ones(1, 3))
    try:
        certificate = sc.certify(dense, sparse, box=box)
    except StructureMismatch:
        return
    assert certificate.bound >= true
    assert 0 < certificate.lower_bound <= certificate.bound


def small() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).eval()


def masked(model: nn.Module) -> nn.Module:
    prune.l1_unstructured(model[0], "weight", 0.5)
    return model


def normed(model: nn.Module) -> nn.Module:
    nn.utils.parametrizations.weight_norm(model[0])
    return model


class Halved(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return weight * 0.5


def parametrised(model: nn.Module) -> nn.Module:
    parametrize.register_parametrization(model[0], "weight", Halved())
    return model


class FakeQuantised(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return torch.round(weight * 8) / 8


def fake_quantised(model: nn.Module) -> nn.Module:
    parametrize.register_parametrization(model[0], "weight", FakeQuantised())
    return model


FORMS = {
    "live masks": masked,
    "weight norm": normed,
    "parametrisation": parametrised,
    "fake quantisation": fake_quantised,
    "compiled": torch.compile,
    "data parallel": nn.DataParallel,
}


@pytest.mark.parametrize("name", FORMS)
def test_matched_by_structure_not_by_names(name):
    dense = small()
    sparse = FORMS[name](copy.deepcopy(dense))
    before = dict(sparse.state_dict())
    box = (torch.zeros(1, 3), torch.ones(1, 3))
    certificate = sc.certify(dense, sparse, box=box)
    plain = getattr(sparse, "_orig_mod", sparse)
    x = torch.rand(500, 3)
    with torch.no_grad():
        true = float((dense(x) - plain(x)).abs().max())
    assert true <= certificate.bound + 1e-6
    assert certificate.bound <= 4 * max(true, 1e-6)
    assert all(torch.equal(v, before[k]) for k, v in sparse.state_dict().items())


def test_the_refusal_says_what_to_do():
    one = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU()).eval()
    two = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU()).eval()
    x = torch.zeros(1, 1, 5, 5)
    with pytest.raises(StructureMismatch, match="1 batch norms, the other 0: fold"):
        sc.certify(one, two, around=x, radius=0.1)
    three = nn.Sequential(nn.Conv2d(1, 1, 3), nn.BatchNorm2d(1), nn.ReLU()).eval()
    with pytest.raises(StructureMismatch, match="before compaction"):
        sc.certify(one, three, around=x, radius=0.1)
