"""What a loss is given of the outputs, and gradients in which there is nothing but rounding."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import secateurs as sc
from secateurs.errors import ArgumentError, ScoreError
from secateurs.scores.task import _say_unpacked, is_rounding


class Two(nn.Module):
    """Two outputs, the second of which matters."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 2), nn.Linear(3, 2)

    def forward(self, x):
        return self.first(x), {"boxes": self.second(x)}


def test_output_chooses_what_the_loss_is_given():
    model, x, y = Two(), torch.randn(4, 3), torch.randn(4, 2)
    plain = sc.score(model, "snip", batch=(x, y), loss=F.mse_loss)
    assert not plain["second.weight"].any() and plain["first.weight"].any()
    chosen = sc.score(model, "snip", batch=(x, y), loss=F.mse_loss, output=lambda o: o[1]["boxes"])
    assert chosen["second.weight"].any() and not chosen["first.weight"].any()
    both = sc.score(
        model,
        "snip",
        batch=(x, y),
        loss=lambda o, y: F.mse_loss(o[0], y) + F.mse_loss(o[1]["boxes"], y),
        output=lambda whole: whole,
    )
    assert both["second.weight"].any() and both["first.weight"].any()
    pruned = sc.prune_(
        model,
        "snip",
        sparsity=0.5,
        batch=(x, y),
        loss=F.mse_loss,
        options={"output": lambda o: o[1]["boxes"]},
    )
    assert pruned.masks["second.weight"].sum() > 4 > 1 >= pruned.masks["first.weight"].sum()


def test_a_tuple_that_was_unpacked_is_said_once(caplog):
    _say_unpacked.cache_clear()
    for _ in range(2):
        sc.score(Two(), "snip", batch=(torch.randn(4, 3), torch.randn(4, 2)), loss=F.mse_loss)
    (said,) = [r.getMessage() for r in caplog.records if "is given the first" in r.getMessage()]
    assert said.startswith("the loss is given the first of the 2 tensors that Two returns: output=")


def test_an_output_that_is_no_function_is_refused():
    with pytest.raises(ArgumentError, match="output=1 is a int: give a function of what the model"):
        sc.score(nn.Linear(2, 2), "snip", batch=(torch.ones(1, 2), 0), loss=F.mse_loss, output=1)
    with pytest.raises(ArgumentError, match="a temperature divides one tensor, and output= gives"):
        sc.score(
            Two(),
            "grasp",
            batch=(torch.ones(1, 3), torch.ones(1, 2)),
            loss=lambda o, y: o[0].sum(),
            output=lambda whole: whole,
            temperature=2.0,
        )


def trained(scale: float = 1.0, dtype: torch.dtype = torch.float32):
    """A classifier that is sure of all its answers, its inputs and labels."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(64, 6, generator=g, dtype=dtype)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 3)).to(dtype)
    y = (x @ torch.randn(6, 3, generator=g, dtype=dtype)).argmax(1)
    adam = torch.optim.Adam(net.parameters(), lr=0.02)
    for _ in range(300):
        adam.zero_grad()
        F.cross_entropy(net(x), y).backward()
        adam.step()
    with torch.no_grad():
        net[2].weight *= scale
        net[2].bias *= scale
    return net, x, y


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("scale", [0.01, 0.1, 1.0])
@pytest.mark.parametrize("rule", ["snip", "taylor", "grasp"])
def test_the_networks_own_outputs_as_targets_are_refused(rule, dtype, scale):
    """Unless half precision has made one number of all sure answers: those are labels."""
    if dtype == torch.bfloat16 and scale == 1:
        return
    net, x, _ = trained(scale)
    net, x = net.to(dtype), x.to(dtype)
    with torch.no_grad():
        own = net(x)
        # A teacher that ran in other batches differs by a few rounding errors.
        parts = torch.cat([net(part) for part in x.split(5)])
    for loss, targets in (
        (F.cross_entropy, own.softmax(1)),
        (F.cross_entropy, parts.softmax(1)),
        (F.mse_loss, own),
        (F.mse_loss, parts),
        (lambda o, y: F.kl_div(o.log_softmax(1), y, reduction="batchmean"), own.softmax(1)),
        (lambda o, y: F.mse_loss(o, own), own),
    ):
        with pytest.raises(ScoreError, match="zero up to rounding.*the model's own outputs"):
            sc.score(net, rule, batch=(x, targets), loss=loss)
    assert sc.score(net, rule, batch=(x, own.argmax(1)), loss=F.cross_entropy)


def test_one_batch_with_something_to_rank_is_enough():
    net, x, _ = trained()
    with torch.no_grad():
        own = net(x)
    pairs = [(x, own), (x, own + 0.1)]
    assert sc.score(net, "snip", batch=pairs, loss=F.mse_loss)["0.weight"].any()
    assert sc.score(net, "snip", batch=pairs[::-1], loss=F.mse_loss)["0.weight"].any()


def test_a_pruned_network_has_a_gradient_towards_the_dense_ones_outputs():
    net, x, _ = trained()
    with torch.no_grad():
        soft = net(x).softmax(1)
    sc.prune_(net, "magnitude", sparsity=0.5)
    assert sc.score(net, "taylor", batch=(x, soft), loss=F.cross_entropy)["0.weight"].any()


@pytest.mark.parametrize("scale", [1.0, 2.0, 4.0, 8.0])
def test_sure_networks_are_no_false_alarm(scale):
    """Losses of 1e-3 down to 1e-40, of labels, of ones and zeros, and of two classes."""
    net, x, y = trained(scale)
    hot = F.one_hot(y, 3).float()
    assert F.cross_entropy(net(x), y) < 1e-3
    for loss, targets in (
        (F.cross_entropy, y),
        (F.cross_entropy, hot),
        (F.binary_cross_entropy_with_logits, hot),
        (lambda o, y: F.cross_entropy(o, y, label_smoothing=0.1), y),
        (lambda o, y: F.mse_loss(o.softmax(1), y), hot),
        (lambda o, y: (1 - o.softmax(1).gather(1, y[:, None])).mean(), y),
    ):
        assert not is_rounding(loss, net(x), targets)


def test_a_gradient_of_zeros_is_refused():
    """Beyond a margin of a hundred, softmax is exact in single precision: nothing reacts."""
    net, x, y = trained(1e3)
    assert is_rounding(F.cross_entropy, net(x), y)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("scale", [1e-30, 1e-15, 1.0, 1e15, 1e30])
def test_the_scale_of_outputs_and_losses_does_not_matter(scale, dtype):
    g = torch.Generator().manual_seed(1)
    output = torch.randn(50, 4, generator=g, dtype=dtype) * scale
    off = output * (1 + 1e-3 * torch.randn(50, 4, generator=g, dtype=dtype))
    noise = output * (1 + 2 * torch.finfo(dtype).eps * torch.randn(50, 4, generator=g, dtype=dtype))
    for weight in (1e-4, 1.0, 1e4):

        def loss(o, y, weight=weight):
            return ((o - y).abs() * weight / scale).square().mean()

        def absolute(o, y, weight=weight):
            return (o - y).square().mean() * weight / scale

        assert not is_rounding(loss, output, off)
        assert is_rounding(loss, output, noise)
        if scale < 1e15:
            assert not is_rounding(absolute, output, off)
    # A gradient of signs is right at any distance but zero.
    assert not is_rounding(F.l1_loss, output, off)
    assert not is_rounding(F.l1_loss, output, torch.zeros_like(output))
    assert is_rounding(F.mse_loss, output, output.clone())


def test_a_loss_that_draws_is_judged_by_one_draw_and_moves_no_other():
    output, target = torch.randn(8, 3), torch.randn(8, 3)

    def loss(o, y):
        return F.mse_loss(F.dropout(o, 0.5), y)

    before = torch.get_rng_state()
    assert not is_rounding(loss, output, target)
    assert torch.equal(before, torch.get_rng_state())
