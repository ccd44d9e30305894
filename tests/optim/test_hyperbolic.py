"""HAM: its update, through any optimizer."""

import copy

import pytest
import torch

from optim.attached_methods import OPTIMIZERS, generator, loss_of, network, train
from secateurs.optim import HAM, RigL, hold


@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_step_is_the_optimizer_s_and_then_the_hyperbolic_one(optimizer, maximize):
    model = network(torch.float64)
    made = OPTIMIZERS[optimizer](model.parameters())
    made.param_groups[0]["maximize"] = maximize
    # Climbing runs away; the exponent is not to reach its limit.
    alpha, steps = (1.0, 5) if maximize else (30.0, 20)
    HAM(model, made, alpha=alpha, beta=0.2)
    for step in range(steps):
        other, theirs = copy.deepcopy((model, made))
        for m, o in ((model, made), (other, theirs)):
            o.zero_grad()
            loss_of(m, step).backward()
            o.step()
        lr, sign = made.param_groups[0]["lr"], -1 if maximize else 1
        for p, q in zip(model.parameters(), other.parameters(), strict=True):
            expected = q.detach()
            if p.ndim > 1:  # biases are left to the optimizer
                expected = expected * torch.exp(-lr * (alpha * sign * q.sign() * q.grad + 0.2))
            torch.testing.assert_close(p.detach(), expected, rtol=1e-12, atol=0)
        made.param_groups[0]["lr"] = lr * 0.95  # the rate of the moment


@pytest.mark.parametrize("kind", ["sgd", "nesterov", "adam", "rmsprop", "nadam"])
def test_many_tensors_at_once_make_no_difference(kind):
    """On a GPU that is torch's default, and such steps write to the gradients."""
    makes = {
        "sgd": lambda ps, **how: torch.optim.SGD(ps, lr=0.05, weight_decay=0.1, **how),
        "nesterov": lambda ps, **how: torch.optim.SGD(
            ps, lr=0.05, momentum=0.9, nesterov=True, **how
        ),
        "adam": lambda ps, **how: torch.optim.Adam(ps, lr=0.01, weight_decay=0.1, **how),
        "rmsprop": lambda ps, **how: torch.optim.RMSprop(ps, lr=0.01, weight_decay=0.1, **how),
        "nadam": lambda ps, **how: torch.optim.NAdam(ps, lr=0.01, weight_decay=0.1, **how),
    }
    results = []
    for foreach in (False, True):
        model = network(torch.float64)
        made = makes[kind](model.parameters(), foreach=foreach)
        HAM(model, made, alpha=20.0, beta=0.1)
        train(model, made, end=8)
        results.append(list(model.parameters()))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


def test_the_exponent_is_limited():
    model = network()
    made = torch.optim.SGD(model.parameters(), lr=1e-6)
    HAM(model, made, alpha=1e30, beta=0.0, limit=2.0)
    before = model[0].weight.detach().clone()
    train(model, made, end=1)
    ratio = (model[0].weight.detach() / before).abs()
    assert float(ratio.max()) == pytest.approx(torch.tensor(2.0).exp().item(), rel=1e-2)


def test_without_alpha_and_beta_nothing_is_added():
    plain, ham = network(), network()
    train(plain, torch.optim.SGD(plain.parameters(), lr=0.05, momentum=0.9))
    made = torch.optim.SGD(ham.parameters(), lr=0.05, momentum=0.9)
    HAM(ham, made, alpha=0.0, beta=0.0)
    train(ham, made)
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), ham.parameters(), strict=True))


@pytest.mark.parametrize("first", ["ham", "masks"])
def test_zeros_that_are_held_stay_zero(first):
    model = network()
    made = torch.optim.AdamW(model.parameters(), lr=0.01)
    mask = torch.rand(12, 6, generator=generator()) < 0.4
    make = [lambda: HAM(model, made), lambda: hold(model, {"0.weight": mask}, made)]
    for call in make if first == "ham" else make[::-1]:
        call()
    train(model, made)
    assert torch.equal(model[0].weight != 0, mask)


def test_with_rigl_the_count_stays():
    model = network()
    made = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    HAM(model, made, alpha=20.0)
    rigl = RigL(model, made, density=0.3, steps=40, every=5)
    train(model, made)
    assert sum(int(m.sum()) for m in rigl.masks.values()) == 32
