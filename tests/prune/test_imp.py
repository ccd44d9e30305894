"""Rewinding really rewinds: every tensor of every round is compared with the dense run at the
rewinding point.
"""

import copy

import pytest
import torch
import torch.nn.functional as F
from rich.console import Console
from torch import nn

from secateurs.errors import ArgumentError, PatternError, TrainingError, UnknownNameError
from secateurs.prune import imp_
from secateurs.prune.rounds import counts_by_share

X = torch.randn(64, 3, 6, 6, generator=torch.Generator().manual_seed(0))
Y = X.mean((1, 2, 3)).gt(0).long()


class Net(nn.Module):
    """With batch-norm statistics, a counter and a buffer that is not saved."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3)
        self.norm = nn.BatchNorm2d(6)
        self.fc = nn.Linear(6, 2)
        self.register_buffer("calls", torch.zeros((), dtype=torch.long), persistent=False)

    def forward(self, x):
        self.calls += self.training
        return self.fc(torch.relu(self.norm(self.conv(x))).mean((2, 3)))


def tensors(model):
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def copied(model):
    return {name: value.detach().clone() for name, value in tensors(model).items()}


class Training:
    """A user's training: 12 steps of SGD with momentum whose rate and batches depend on the
    iteration alone.
    """

    def __init__(self, steps=12, hold=True):
        self.steps, self.hold, self.starts, self.trace, self.momenta, self.modes = (
            steps,
            hold,
            [],
            [],
            [],
            [],
        )

    def __call__(self, model, run):
        self.starts.append((run.round, run.rounds, run.start, copied(model)))
        self.modes.append([m.training for m in model.modules()])
        assert all(p.grad is None for p in model.parameters())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)
        if self.hold:
            run.hold(optimizer)
        self.momenta.append(copy.deepcopy(optimizer.state_dict()["state"]))
        for iteration in range(run.start, self.steps):
            optimizer.param_groups[0]["lr"] = 0.1 / (1 + iteration)
            rows = torch.arange(16) + 4 * iteration
            optimizer.zero_grad()
            F.cross_entropy(model(X[rows % 64]), Y[rows % 64]).backward()
            optimizer.step()
            if run.round == 0:
                self.trace.append((copied(model), copy.deepcopy(optimizer.state_dict()["state"])))
            for name, mask in run.masks.items():
                assert not self.hold or not model.get_parameter(name)[~mask].any()
        model.eval()
        return round(float((model(X).argmax(1) == Y).float().mean()), 3)


@pytest.mark.parametrize("rewind_to", ["0it", 5, "2ep"])
def test_every_round_starts_from_the_state_of_the_dense_run(rewind_to):
    torch.manual_seed(1)
    model, train = Net(), Training()
    start = copied(model)
    point = {"0it": 0, 5: 5, "2ep": 8}[rewind_to]
    found = imp_(
        model,
        train,
        sparsity=0.6,
        per_round=0.3,
        rewind_to=rewind_to,
        batches_per_epoch=4,
    )
    dense = start if point == 0 else train.trace[point - 1][0]
    assert [entry[:3] for entry in train.starts] == [
        (0, 3, 0),
        (1, 3, point),
        (2, 3, point),
        (3, 3, point),
    ]
    for number, _, _, state in train.starts[1:]:
        masks = {name: state[name] != 0 for name in found.masks}
        for name, value in state.items():
            mask = masks.get(name)
            assert torch.equal(value, dense[name] if mask is None else dense[name] * mask), (
                number,
                name,
            )
    assert all(modes == train.modes[0] for modes in train.modes), (
        "train left the model in evaluation mode"
    )
    assert found.start == point
    assert all(
        torch.equal(found.rewound.parameters[n], dense[n]) for n, _ in model.named_parameters()
    )


def test_counts_masks_and_result():
    torch.manual_seed(1)
    model, train = Net(), Training()
    found = imp_(model, train, sparsity=0.6, per_round=0.3, rewind_to=4)
    total = 6 * 27 + 12
    assert [r.kept for r in found.rounds] == [
        total,
        *counts_by_share(start=total, end=70, per_round=0.3),
    ]
    assert [r.kept for r in found.rounds] == [r.asked for r in found.rounds] == [174, 122, 85, 70]
    assert found.report.total.kept == 70 and [r.returned for r in found.rounds][-1] > 0
    shrinking = [{n: s[n] != 0 for n in found.masks} for _, _, _, s in train.starts]
    for earlier, later in zip(shrinking, [*shrinking[1:], found.masks], strict=True):
        assert not any((later[n] & ~earlier[n]).any() for n in found.masks)
    for name, mask in found.masks.items():
        assert torch.equal(model.get_parameter(name) != 0, mask), (
            "the model is the trained one of the last round"
        )
    console = Console(record=True, width=120)
    with console.capture() as shown:
        console.print(found)
    assert "rewinding to iteration 4" in shown.get()


def test_masks_are_those_of_the_trained_magnitudes():
    torch.manual_seed(1)
    model, train = Net(), Training()
    found = imp_(model, train, density=0.5, per_round=0.5, rewind_to=3)
    trained = train.trace[-1][0]
    flat = torch.cat([trained[n].flatten().abs() for n in found.masks])
    smallest_kept = flat.sort(descending=True).values[found.report.total.kept - 1]
    assert all(
        torch.equal(mask, trained[n].abs() >= smallest_kept) for n, mask in found.masks.items()
    )


def test_ticket_and_rewind():
    torch.manual_seed(1)
    model, train = Net(), Training()
    found = imp_(model, train, sparsity=0.5, per_round=0.5, rewind_to=5, train_last=False)
    assert len(train.starts) == len(found.rounds) == 1
    ticket = copied(model)
    dense = train.trace[4][0]
    for name, value in ticket.items():
        assert torch.equal(
            value,
            dense[name] * found.masks[name] if name in found.masks else dense[name],
        )
    train(model, _Free())
    found.rewind_(model)
    assert all(torch.equal(value, ticket[name]) for name, value in copied(model).items())


class _Free:
    round, rounds, start, masks = 1, 1, 0, {}

    def hold(self, optimizer):
        return None


def test_learning_rate_rewinding_keeps_the_trained_weights():
    torch.manual_seed(1)
    model, train = Net(), Training()
    found = imp_(model, train, sparsity=0.5, per_round=0.5, rewind_to=5, rewind="learning-rate")
    _, _, start, state = train.starts[1]
    trained = train.trace[-1][0]
    assert start == 5
    for name, value in state.items():
        assert torch.equal(
            value,
            trained[name] * found.masks[name] if name in found.masks else trained[name],
        )


def test_optimizer_rewinding():
    torch.manual_seed(1)
    model, train = Net(), Training()
    found = imp_(model, train, sparsity=0.5, per_round=0.5, rewind_to=5, rewind_optimizer=True)
    then, now = train.trace[4][1], train.momenta[1]
    names = [name for name, _ in model.named_parameters()]
    assert not train.momenta[0]
    for index, name in enumerate(names):
        mask = found.masks.get(name, 1)
        assert torch.equal(now[index]["momentum_buffer"], then[index]["momentum_buffer"] * mask)


@pytest.mark.parametrize("scope", ["layer", "erk", {"conv.weight": 0.3, "fc.weight": 0.6}])
def test_other_scopes_and_scores(scope):
    torch.manual_seed(1)
    model = Net()
    amount = {} if isinstance(scope, dict) else {"sparsity": 0.6}
    found = imp_(
        model,
        Training(4),
        **amount,
        per_round=0.4,
        rewind_to=2,
        scope=scope,
        score="snip",
        batch=(X, Y),
        loss=F.cross_entropy,
    )
    assert [r.kept for r in found.rounds] == [r.asked for r in found.rounds]
    if isinstance(scope, dict):
        assert [int(m.sum()) for m in found.masks.values()] == [
            round(0.3 * 162),
            round(0.6 * 12),
        ]


@pytest.mark.parametrize(
    ("train", "message"),
    [
        (
            Training(hold=False),
            r"0 optimizer steps that run.hold counted and never reached the rewinding point 5it",
        ),
        (Training(4), r"the dense training took 4 optimizer steps"),
    ],
)
def test_a_dense_run_that_never_comes_to_the_rewinding_point(train, message):
    _unchanged_after(train, TrainingError, message, rewind_to=5)


def test_a_training_that_does_not_hold_is_found_out():
    _unchanged_after(
        Training(hold=False),
        TrainingError,
        r"came back in the training of round 1: 'conv.weight' has \d+.*run.hold",
    )


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
@pytest.mark.parametrize("in_round", [0, 2])
def test_any_error_puts_the_model_back_bit_by_bit(error, in_round):
    inner = Training()

    def train(model, run):
        inner(model, run)
        if run.round == in_round:
            raise error("injected")

    _unchanged_after(train, error, "injected", rewind_to=2, per_round=0.2)


def test_holding_twice_and_a_model_that_changes_shape():
    def twice(model, run):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        run.hold(optimizer)
        run.hold(optimizer)

    _unchanged_after(twice, TrainingError, "run.hold was called twice in round 0")

    def grow(model, run):
        model.register_buffer("new", torch.zeros(1))
        Training()(model, run)

    model = Net()
    before = copied(model)
    with pytest.raises(TrainingError, match="'new' appeared, vanished or changed shape"):
        imp_(model, grow, sparsity=0.5)
    assert all(torch.equal(tensors(model)[name], value) for name, value in before.items()), (
        "what can be is put back"
    )


def _unchanged_after(train, error, message, **options):
    model = Net()
    model(X).sum().backward()
    model.norm.eval()
    before, modes = copied(model), [m.training for m in model.modules()]
    gradients = [p.grad.clone() for p in model.parameters()]

    def without_gradients(model, run):
        model.zero_grad(set_to_none=True)
        return train(model, run)

    with pytest.raises(error, match=message):
        imp_(model, without_gradients, **{"sparsity": 0.5, **options})
    assert all(torch.equal(value, before[name]) for name, value in copied(model).items())
    assert [m.training for m in model.modules()] == modes
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), gradients, strict=True))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"sparsity": 0.5, "per_round": 1.5}, ArgumentError, "per_round=1.5"),
        (
            {"density": 0, "floor": 0},
            ArgumentError,
            "no number of rounds of 20% leads from 174 entries kept to 0",
        ),
        (
            {"sparsity": 0.5, "rounds": 3},
            ArgumentError,
            "the rounds of imp follow from per_round",
        ),
        (
            {"sparsity": 0.5, "schedule": "cubic"},
            ArgumentError,
            "leave rounds= and schedule= out",
        ),
        (
            {"sparsity": 0.5, "rewind": "weight"},
            ArgumentError,
            "rewind='weight'; it is 'weights' or 'learning-rate'",
        ),
        (
            {"sparsity": 0.5, "rewind_to": "2 epochs"},
            ArgumentError,
            "'2 epochs' is not a step",
        ),
        (
            {"sparsity": 0.5, "rewind_to": "2ep"},
            ArgumentError,
            "give batches_per_epoch",
        ),
        (
            {"sparsity": 0.5, "scop": "layer"},
            UnknownNameError,
            "Did you mean 'scope'",
        ),
        (
            {"sparsity": 0.5, "score": "snip"},
            ArgumentError,
            "score 'snip' needs batch=",
        ),
        ({}, ArgumentError, "how much to keep is missing"),
    ],
)
def test_refusals_come_before_any_training(options, error, message):
    def train(model, run):
        raise AssertionError("must not train")

    with pytest.raises(error, match=message):
        imp_(Net(), train, **options)


class OwnLinear(nn.Module):
    """A layer that only its operator tells outputs and inputs of."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 4))

    def forward(self, x):
        return F.linear(x, self.weight)


def test_an_example_tells_which_dimension_of_an_unknown_layer_is_which():
    asked = {"pattern": "filter", "sparsity": 0.5, "per_round": 0.3}
    with pytest.raises(PatternError, match="pass example="):
        imp_(OwnLinear(), lambda model, run: None, **asked)
    found = imp_(OwnLinear(), lambda model, run: None, example=torch.zeros(1, 4), **asked)
    assert found.masks["weight"].all(1).sum() == 4 and found.masks["weight"].sum() == 16
