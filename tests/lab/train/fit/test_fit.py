"""The training loop: against a loop written out, its schedules, callbacks, history, and how it
fails.
"""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from secateurs.errors import ArgumentError, TrainingError
from secateurs_lab.data import augment, from_tensors
from secateurs_lab.models import build
from secateurs_lab.train import cosine, evaluate, every, fit_, step_decay


@pytest.fixture
def data():
    g = torch.Generator().manual_seed(7)
    x, y = (
        torch.randn(50, 1, 4, 4, generator=g),
        torch.randint(0, 3, (50,), generator=g),
    )
    return from_tensors("noise", train_x=x, train_y=y, test_x=x[:21], test_y=y[:21], classes=3)


def net(name="lenet-300-100"):
    return build(
        name,
        in_channels=1,
        classes=3,
        size=4,
        generator=torch.Generator().manual_seed(1),
    )


def sgd(model, rate=0.05):
    return torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)


def run(model, data, *, optimizer=None, length="3ep", batch=16, seed=0, **options):
    optimizer = optimizer or sgd(model)
    generator = torch.Generator().manual_seed(seed)
    return fit_(
        model,
        data,
        optimizer=optimizer,
        length=length,
        batch=batch,
        generator=generator,
        verbose=False,
        **options,
    )


def same(a: nn.Module, b: nn.Module) -> bool:
    return all(
        torch.equal(p, q)
        for p, q in zip(a.state_dict().values(), b.state_dict().values(), strict=True)
    )


@pytest.mark.parametrize("name", ["lenet-300-100", "resnet-20"])
def test_fit_takes_the_steps_of_a_loop_written_out(name, data):
    ours, theirs = net(name), net(name)
    result = run(ours, data, length="10it", schedule=step_decay(at=["1ep"]))
    optimizer, generator, done, losses = (
        sgd(theirs),
        torch.Generator().manual_seed(0),
        0,
        [],
    )
    theirs.train()
    for epoch in range(3):
        order = torch.randperm(50, generator=generator)
        for start in range(0, 50, 16):
            if done == 10:
                break
            optimizer.param_groups[0]["lr"] = 0.05 if epoch == 0 else 0.05 * 0.1
            chosen = order[start : start + 16]
            loss = F.cross_entropy(theirs(data.train_x[chosen]), data.train_y[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append((loss.item(), len(chosen)))
            done += 1
    assert same(ours, theirs)
    assert result.iterations == 10 and [e.iteration for e in result.history] == [
        4,
        8,
        10,
    ]
    first = losses[:4]
    assert result.history[0].loss == pytest.approx(
        sum(v * n for v, n in first) / sum(n for _, n in first)
    )


def test_the_generator_decides_the_run(data):
    one, two, other = net(), net(), net()
    run(one, data), run(two, data), run(other, data, seed=1)
    assert same(one, two) and not same(one, other)


def test_two_threads_train_the_same_schedule_of_batches(data):
    seen = {}
    threads = torch.get_num_threads()
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            xs = seen.setdefault(count, [])
            run(
                net(),
                data,
                augment=lambda x, *, generator, xs=xs: xs.append(x.clone()) or x,
            )
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(torch.cat(seen[1]), torch.cat(seen[2]))


def test_history_says_what_evaluate_says(data):
    model = net()
    result = run(model, data, evaluate_every=2)
    assert [e.test_accuracy is None for e in result.history] == [True, False, False]
    final = evaluate(model, data)
    assert (result.accuracy, result.history[-1].test_loss) == (
        final.accuracy,
        final.loss,
    )
    assert run(model, data, evaluate_every=0).accuracy is None
    assert all(e.seconds >= 0 for e in result.history) and result.seconds > 0


def test_training_learns_separable_classes():
    g = torch.Generator().manual_seed(0)
    y = torch.randint(0, 3, (120,), generator=g)
    x = F.one_hot(y, 16).float().view(-1, 1, 4, 4) + 0.1 * torch.randn(120, 1, 4, 4, generator=g)
    easy = from_tensors("easy", train_x=x, train_y=y, test_x=x, test_y=y)
    assert run(net(), easy, length="10ep").accuracy == 1.0


def test_no_steps_change_nothing(data):
    model, before = net(), net()
    result = run(model, data, length="0ep")
    assert same(model, before) and result.history == () and result.accuracy is None


def test_modes_and_learning_rates_are_put_back(data):
    model = net("resnet-20").train()
    model.bn.eval()
    optimizer = sgd(model)
    run(model, data, optimizer=optimizer, schedule=cosine())
    assert model.training and not model.bn.training and optimizer.param_groups[0]["lr"] == 0.05


def test_a_model_in_evaluation_mode_is_trained_in_training_mode_and_given_back_as_it_was(
    data,
):
    model = net("resnet-20").eval()
    run(model, data, length="1ep")
    assert model.bn.num_batches_tracked == 4 and not model.training


def test_schedules_reach_every_parameter_group(data):
    model, rates = net(), []
    groups = [
        {"params": [model.fc1.weight], "lr": 1e-2},
        {"params": [model.fc2.weight], "lr": 1e-3},
    ]

    def log(moment):
        return rates.append([group["lr"] for group in moment.optimizer.param_groups])

    run(
        model,
        data,
        optimizer=torch.optim.SGD(groups),
        schedule=cosine(),
        callbacks=[log],
        length="8it",
    )
    factors = [(1 + math.cos(math.pi * i / 8)) / 2 for i in range(8)]
    assert rates == [[pytest.approx(1e-2 * f), pytest.approx(1e-3 * f)] for f in factors]


def test_callbacks_run_after_each_step_in_order_and_every_thins_them(data):
    calls = []
    run(
        net(),
        data,
        callbacks=[
            lambda m: calls.append(("a", m.clock.iteration)),
            every("1ep", lambda m: calls.append(("b", m.clock.iteration))),
            every("5it", lambda m: calls.append(("c", m.clock.iteration))),
        ],
    )
    assert [n for key, n in calls if key == "a"] == list(range(1, 13))
    assert [n for key, n in calls if key == "b"] == [4, 8, 12]
    assert [n for key, n in calls if key == "c"] == [5, 10]
    assert calls.index(("a", 4)) < calls.index(("b", 4))


def test_a_callback_sees_the_loss_of_its_step(data):
    seen = []
    result = run(
        net(),
        data,
        length="1it",
        callbacks=[lambda m: seen.append((m.loss.item(), m.loss.requires_grad))],
    )
    assert seen == [(pytest.approx(result.history[0].loss), False)]


def test_augmentation_changes_what_is_trained_on_but_not_the_evaluation(data):
    plain, augmented = net(), net()
    run(plain, data), run(augmented, data, augment=augment)
    assert not same(plain, augmented)


def test_drop_last_leaves_out_the_short_batch(data):
    assert run(net(), data, drop_last=True).iterations == 9
    assert run(net(), data).iterations == 12


def test_a_loss_that_is_not_finite_ends_the_run_before_the_step_and_names_it(data):
    model = net()
    bad = from_tensors(
        "bad",
        train_x=data.train_x.clone(),
        train_y=data.train_y,
        test_x=data.test_x,
        test_y=data.test_y,
        classes=3,
    )
    calls = []

    def loss(outputs, labels):
        calls.append(1)
        return F.cross_entropy(outputs, labels) * (float("nan") if len(calls) == 6 else 1.0)

    with pytest.raises(
        TrainingError,
        match=r"loss is nan at step 6 of 12 \(epoch 2, learning rate 0.05\)",
    ):
        run(model, bad, loss=loss, evaluate_every=0)
    assert all(parameter.isfinite().all() for parameter in model.parameters())
    assert len(calls) == 6


def test_on_accelerators_the_losses_are_looked_at_in_blocks_and_the_step_is_still_exact():
    """The same bookkeeping with a tensor that says it is elsewhere."""
    from secateurs_lab.train.evaluate import Losses

    class Elsewhere(torch.Tensor):
        @property
        def device(self):
            return torch.device("cuda")

    losses = Losses(iteration=20, per_epoch=10, total=100)
    for value in (1.0, 2.0, 3.0):
        losses.add(torch.tensor(value).as_subclass(Elsewhere), 4)
    assert losses.examples == 0 and losses.mean() == pytest.approx(2.0)
    losses.add(torch.tensor(1.0).as_subclass(Elsewhere), 4)
    losses.add(torch.tensor(math.inf).as_subclass(Elsewhere), 4)
    losses.add(torch.tensor(math.nan).as_subclass(Elsewhere), 4)
    with pytest.raises(TrainingError, match="loss is inf at step 25 of 100"):
        losses.mean()


class Pair(nn.Module):
    """A network that returns its logits with something else."""

    def __init__(self):
        super().__init__()
        self.inner = net()

    def forward(self, x):
        return self.inner(x), x


def test_outputs_that_are_no_logits_are_refused_in_plain_words(data):
    with pytest.raises(ArgumentError, match="returns a tuple, not one tensor"):
        run(Pair(), data)
    with pytest.raises(ArgumentError, match="returns a tuple, not one tensor"):
        evaluate(Pair(), data)
    # A loss that takes the pair is somebody's own affair.
    run(
        Pair(),
        data,
        loss=lambda outputs, y: F.cross_entropy(outputs[0], y),
        evaluate_every=0,
    )


def test_wrong_options_are_refused(data):
    with pytest.raises(
        ArgumentError,
        match="batches of 0 cannot be taken from 50 examples; choose 1 to 50",
    ):
        run(net(), data, batch=0)
    with pytest.raises(ArgumentError, match="batches of 51 cannot be taken"):
        run(net(), data, batch=51, drop_last=True)
    with pytest.raises(ArgumentError, match="there is no device 'gpu' on this machine"):
        run(net(), data, device="gpu")
    with pytest.raises(ArgumentError, match="'3 epochs' is not a step"):
        run(net(), data, length="3 epochs")


def test_evaluate_counts_by_hand(data):
    model = net().train()
    result = evaluate(model, data, batch=4)
    with torch.no_grad():
        outputs = model(data.test_x)
    assert result.correct == int((outputs.argmax(1) == data.test_y).sum()) and result.examples == 21
    assert result.loss == pytest.approx(F.cross_entropy(outputs, data.test_y).item(), rel=1e-5)
    assert result.accuracy == result.correct / 21 and model.training
    assert evaluate(model, data, split="train").examples == 50


def test_the_forward_pass_runs_in_the_precision_that_was_asked(data):
    seen = []

    def loss(outputs, labels):
        seen.append(outputs.dtype)
        return F.cross_entropy(outputs, labels)

    for how in ({}, {"precision": "bf16"}):
        model = net()
        fit_(model, data, optimizer=sgd(model), length="1it", loss=loss, evaluate_every=0, **how)
        assert all(p.dtype == torch.float32 for p in model.parameters())
    assert seen == [torch.float32, torch.bfloat16]


def test_an_unknown_precision_changes_nothing(data):
    model = net()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(ArgumentError, match="bf16"):
        fit_(model, data, optimizer=sgd(model), length="1it", verbose=False, precision="bf61")
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
