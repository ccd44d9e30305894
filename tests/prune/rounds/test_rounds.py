"""Rounds on compiled passes give the masks of pure-torch ones, whatever the weights look like."""

import copy
import shutil

import pytest
import torch
from torch import Tensor, nn

from secateurs.masks import select, topk
from secateurs.prune import pruning, recipe
from secateurs.scores import Scorer, cut
from secateurs.scores.rules import product

KERNELS = (topk, cut, product)


@pytest.fixture(autouse=True)
def compiled_everywhere(monkeypatch):
    if any(module.kernel() is None for module in KERNELS):
        assert not any(map(shutil.which, ("g++", "clang++", "c++"))), (
            "the compiler is there: why was it refused?"
        )
        pytest.skip("no C++ compiler on this machine")
    for module in KERNELS:
        monkeypatch.setattr(module, "FEWEST", 0)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.c, self.d = nn.Conv2d(8, 8, 3, padding=1), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.a(x))
        y = torch.relu(self.c(torch.relu(self.b(y)))) + y
        return self.d(y.mean((2, 3)))


def tied() -> nn.Module:
    net = Net()
    net.c.weight = net.b.weight
    return net


def turned() -> nn.Module:
    """A weight that lies transposed, one that is every other row of something, and one of ones."""
    net = Net()
    net.d.weight = nn.Parameter(net.d.weight.detach().t().contiguous().t())
    rows = torch.randn(16, 8, 3, 3)
    net.b.weight = nn.Parameter(rows[::2])
    net.c.weight = nn.Parameter(torch.ones(8, 8, 3, 3))
    return net


class Viewed(Net):
    """One tensor of weights used through a view of it."""

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.a(x))
        y = torch.conv2d(y, self.b.weight.transpose(0, 1), padding=1)
        return self.d(torch.relu(y).mean((2, 3)) @ self.c.weight[:, :, 1, 1].t())


class Attending(Net):
    """Its flow may be negative."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.a(x).flatten(2).transpose(1, 2)
        return self.d(torch.softmax(y @ y.transpose(1, 2), -1) @ y)


MODELS = {
    "plain": Net,
    "channels last": lambda: Net().to(memory_format=torch.channels_last),
    "tied": tied,
    "odd strides and ties": turned,
    "views": Viewed,
    "attention": Attending,
    "double": lambda: Net().double(),
    "half": lambda: Net().bfloat16(),
}


def pure_torch(monkeypatch) -> None:
    for module in KERNELS:
        monkeypatch.setattr(module, "kernel", lambda: None)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("score", ["synflow", "synflow-chi"])
@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_masks_of_ten_rounds_are_those_of_pure_torch(make, score, threads, monkeypatch):
    model, before = make(), torch.get_num_threads()
    x = torch.zeros(1, 3, 6, 6).to(next(model.parameters()))
    state = copy.deepcopy(model.state_dict())
    given = {"example": x, "rounds": 10, "sparsity": 0.9}
    torch.set_num_threads(threads)
    try:
        seed = torch.Generator().manual_seed(0)
        ours = pruning.cut(model, score, generator=seed, **given)
        pure_torch(monkeypatch)
        seed = torch.Generator().manual_seed(0)
        theirs = pruning.cut(model, score, generator=seed, **given)
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(ours.masks[n], theirs.masks[n]) for n in theirs.masks)
    assert ours.rounds == theirs.rounds
    assert all(torch.equal(state[n], t) for n, t in model.state_dict().items())


def test_rounds_are_scoring_and_selecting_by_hand():
    model, x = Net(), torch.zeros(1, 3, 6, 6)
    pruned = pruning.cut(model, "synflow", example=x, rounds=10, sparsity=0.9)
    scorer, masks = Scorer(model, "synflow", example=x), None
    for entry in pruned.rounds:
        density = entry.asked / entry.total
        masks = select(scorer.scores(masks), density=density, within=masks)
        assert entry.kept == sum(int(mask.sum()) for mask in masks.values())
    assert all(torch.equal(pruned.masks[n], mask) for n, mask in masks.items())


@pytest.mark.parametrize("floor", [0, 1, 20, 0.05])
@pytest.mark.parametrize("sparsity", [0.5, 0.9])
def test_one_pass_respects_floors_and_earlier_masks(sparsity, floor, monkeypatch):
    """With products chosen and weights cut in one pass, as with scores written down."""
    model, x, done = Net(), torch.zeros(1, 3, 6, 6), []
    with torch.no_grad():
        model.b.weight.mul_(1e-3)  # falls below its floor
    draw = torch.Generator().manual_seed(1)
    within = {"c.weight": torch.rand(8, 8, 3, 3, generator=draw) < 0.7}
    given = {"example": x, "rounds": 8, "sparsity": sparsity, "floor": floor, "within": within}
    one_pass = recipe.cut_products

    def watched(*args, **keywords):
        done.append(one_pass(*args, **keywords))
        return done[-1]

    monkeypatch.setattr(recipe, "cut_products", watched)
    ours = pruning.cut(model, "synflow", **given)
    assert len(done) == 8 and None not in done
    monkeypatch.setattr(recipe, "takes_products", lambda *_: False)
    theirs = pruning.cut(model, "synflow", **given)
    assert len(done) == 8
    assert all(torch.equal(ours.masks[n], theirs.masks[n]) for n in theirs.masks)
    assert ours.rounds == theirs.rounds


def test_a_pass_that_gives_up_leaves_the_round_to_scores():
    """Equal scores everywhere: half of a layer of ones."""

    class Ones(nn.Linear):
        def __init__(self) -> None:
            super().__init__(2000, 1100, bias=False)
            nn.init.ones_(self.weight)

    given = {"example": torch.zeros(1, 2000), "rounds": 3, "sparsity": 0.5}
    pruned = pruning.cut(Ones(), "synflow", **given)
    mask = pruned.masks["weight"].flatten()
    assert mask[:1_100_000].all() and not mask[1_100_000:].any()


def test_a_flow_out_of_range_is_computed_in_double_precision_in_every_round(monkeypatch):
    model = Net()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1e12)
    given = {"example": torch.zeros(1, 3, 6, 6), "rounds": 4, "sparsity": 0.9}
    ours = pruning.cut(model, "synflow", **given)
    monkeypatch.setattr(recipe, "takes_products", lambda *_: False)
    theirs = pruning.cut(model, "synflow", **given)
    assert all(torch.equal(ours.masks[n], mask) for n, mask in theirs.masks.items())
