"""Another amount for each block: laws of the shares, OWL beside a plain loop."""

import copy

import pytest
import torch
from torch import nn

import secateurs as sc
from secateurs.errors import ArgumentError, ScoreError
from secateurs.llm.amounts import WAYS


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(20, width), nn.Linear(width, 20)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for width in (40, 60, 20, 40))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def network():
    torch.manual_seed(0)
    net = Net()
    with torch.no_grad():
        for number, block in enumerate(net.blocks):
            for layer in (block.up, block.down):  # outliers, ever more
                layer.weight.view(-1)[: 10 * number] *= 30
    return net


BATCH = torch.randn(64, 20, generator=torch.Generator().manual_seed(1))
NAMES = [f"blocks.{number}" for number in range(4)]
SIZES = torch.tensor([40, 60, 20, 40]).double() * 40


def prune(net, **options):
    options = {"sparsity": 0.6, "batch": BATCH, **options}
    return sc.prune_blocks_(net, "magnitude", **options)


def kept(done):
    """The density of each block in the report."""
    found = []
    for name in NAMES:
        rows = [row for row in done.report.tensors if row.name.startswith(name)]
        found.append(sum(row.kept for row in rows) / sum(row.total for row in rows))
    return torch.tensor(found, dtype=torch.float64)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("sparsity", [0.05, 0.6, 0.97])
def test_the_overall_amount_holds_and_shares_lie_within_the_spread(way, sparsity):
    done = prune(network(), amounts=way, sparsity=sparsity)
    assert list(done.amounts) == NAMES
    shares = torch.tensor(list(done.amounts.values()), dtype=torch.float64)
    assert float((shares * SIZES).sum() / SIZES.sum()) == pytest.approx(1 - sparsity, abs=1e-12)
    # Rounding to whole entries moves a block by less than one of its 800 to 2400.
    assert torch.allclose(kept(done), shares, atol=1 / 800)
    assert done.report.sparsity == pytest.approx(sparsity, abs=1e-3)
    wide = min(0.08, sparsity / 2, (1 - sparsity) / 2)
    assert float(shares.max() - shares.min()) == pytest.approx(2 * wide)
    assert "sparsity by block: blocks.0" in str(done)


def test_progression_goes_down_in_equal_steps():
    shares = torch.tensor(list(prune(network(), amounts="progression").amounts.values()))
    assert torch.allclose(shares.diff(), torch.full((3,), -0.16 / 3))


def test_owl_equals_the_plain_loop():
    net, x, ratios = network(), BATCH, []
    with torch.no_grad():
        for block in net.blocks:
            inner = torch.relu(block.up(x))
            over = 0
            for layer, given in ((block.up, x), (block.down, inner)):
                scores = layer.weight.abs() * given.norm(dim=0)
                over += int((scores > 5 * scores.mean()).sum())
            ratios.append(over)
            x = block(x)
    part = torch.tensor(ratios).double() / SIZES
    above = 0.16 * (part - part.min()) / (part.max() - part.min())
    wanted = 0.4 + above - (above * SIZES).sum() / SIZES.sum()
    done = prune(network(), amounts="owl")
    assert torch.allclose(torch.tensor(list(done.amounts.values())).double(), wanted, atol=1e-6)


def test_sensitivity_orders_blocks_by_the_change_of_their_outputs():
    net, x, changes = network(), BATCH, []
    with torch.no_grad():
        for block in net.blocks:
            small = copy.deepcopy(block)
            sc.prune_(small, "magnitude", sparsity=0.6)
            whole = block(x)
            changes.append(float((small(x) - whole).norm() / whole.norm()))
            x = whole
    shares = list(prune(network(), amounts="sensitivity").amounts.values())
    low, high = min(changes), max(changes)
    for share, change in zip(shares, changes, strict=True):
        wanted = 0.16 * (change - low) / (high - low)
        assert share - min(shares) == pytest.approx(wanted, abs=1e-5)


def test_a_mapping_by_name_and_place():
    done = prune(network(), amounts={"blocks.1": 0.2, -1: 0.9})
    shares = list(done.amounts.values())
    assert shares[1] == 0.8 and shares[3] == 0.1 and shares[0] == shares[2]
    assert done.report.sparsity == pytest.approx(0.6, abs=1e-3)
    assert torch.allclose(kept(done), torch.tensor(shares).double(), atol=1 / 800)
    # Amounts are of the kind that the recipe states.
    other = prune(network(), sparsity=None, density=0.4, amounts={1: 0.8, 3: 0.1})
    assert other.amounts == done.amounts


def test_the_same_amount_for_all_changes_nothing():
    one, two = network(), network()
    first, second = prune(one), prune(two, amounts=dict.fromkeys(range(4), 0.6))
    assert all(torch.equal(first.masks[name], second.masks[name]) for name in first.masks)
    assert not first.amounts


def test_wanda_by_rows_with_reconstruction():
    net = network()
    options = {"scope": "row", "sparsity": 0.5, "batch": BATCH, "amounts": "owl"}
    done = sc.prune_blocks_(net, "wanda", reconstruct=True, **options)
    assert done.reconstructed and done.report.sparsity == pytest.approx(0.5, abs=0.03)
    for name, mask in done.masks.items():
        assert not net.get_parameter(name)[~mask].any()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"amounts": "owls"}, "Did you mean 'owl'"),
        ({"amounts": 0.5}, "Or give a mapping"),
        ({"amounts": {"blocks.9": 0.5}}, "there is no block 'blocks.9'"),
        ({"amounts": {4: 0.5}}, "names block 4, but there are only 4"),
        ({"amounts": {0: 0.5, "blocks.0": 0.5}}, "'blocks.0' twice"),
        ({"amounts": {0: 1.5}}, "of block 'blocks.0': sparsity=1.5"),
        ({"amounts": {0: 0.1, 1: 0.1, 2: 0.1}}, r"sparsity of 0.6: .* it is 0.075 to 0.325"),
        ({"amounts": dict.fromkeys(range(4), 0.5)}, r"it is 0.5. Change the recipe's sparsity=0.6"),
        ({"amounts": "owl", "sparsity": None, "pattern": "2:4"}, "the recipe states none"),
    ],
)
def test_errors_leave_the_model_alone(options, text):
    net = network()
    before = copy.deepcopy(net.state_dict())
    with pytest.raises(ArgumentError, match=text):
        prune(net, **options)
    assert all(torch.equal(before[n], t) for n, t in net.state_dict().items())


@pytest.mark.parametrize("way", ["owl", "sensitivity"])
def test_activations_that_are_not_finite(way):
    net = network()
    with torch.no_grad():
        net.blocks[1].up.bias.fill_(torch.nan)
    with pytest.raises(ScoreError, match="'blocks.1'"):
        prune(net, amounts=way)
