"""`secateurs.compat` against `torch.nn.utils.prune` itself: same calls, same masks, same
training.
"""

import copy

import pytest
import torch
import torch.nn.utils.prune as torch_prune
from torch import nn

import secateurs.compat as our_prune
from secateurs.errors import ArgumentError, MaskError, ParameterError


def net(dtype=torch.float32) -> nn.Sequential:
    torch.manual_seed(7)
    return nn.Sequential(
        nn.Conv2d(3, 6, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(54, 10),
        nn.Linear(10, 4),
    ).to(dtype)


def masks(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: b for name, b in model.named_buffers() if name.endswith("_mask")}


def assert_same(theirs: nn.Module, ours: nn.Module) -> None:
    expected, found = masks(theirs), masks(ours)
    assert list(expected) == list(found)
    for name, mask in expected.items():
        assert mask.dtype == found[name].dtype
        assert torch.equal(mask, found[name]), name
        path = name.removesuffix("_mask").rpartition(".")
        weights = (getattr(model.get_submodule(path[0]), path[2]) for model in (theirs, ours))
        assert torch.equal(*(weight.detach() for weight in weights))


def both(call) -> None:
    """Run the call on both libraries from the same state of the generator and compare."""
    theirs, ours = net(), net()
    for library, model in ((torch_prune, theirs), (our_prune, ours)):
        torch.manual_seed(3)
        call(library, model)
    assert_same(theirs, ours)


@pytest.mark.parametrize("amount", [0, 0.0, 0.2, 0.55, 1.0, 1, 30])
@pytest.mark.parametrize("function", ["l1_unstructured", "random_unstructured"])
def test_unstructured(function, amount):
    both(lambda prune, model: getattr(prune, function)(model[3], "weight", amount))


@pytest.mark.parametrize("function", ["l1_unstructured", "random_unstructured"])
def test_pruning_again_counts_what_is_left(function):
    def twice(prune, model):
        getattr(prune, function)(model[0], "weight", 0.3)
        getattr(prune, function)(model[0], "weight", amount=0.25)
        getattr(prune, function)(model[0], "weight", amount=7)

    both(twice)


@pytest.mark.parametrize("n", [1, 2, float("inf")])
@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("amount", [0.0, 1, 0.5])
def test_ln_structured(n, dim, amount):
    both(lambda prune, model: prune.ln_structured(model[0], "weight", amount, n, dim))


def test_structured_after_unstructured_and_random_structured():
    def mixed(prune, model):
        prune.l1_unstructured(model[0], name="weight", amount=0.6)
        prune.ln_structured(model[0], name="weight", amount=2, n=2, dim=0)
        prune.ln_structured(model[0], name="weight", amount=0.5, n=1, dim=0)
        prune.random_structured(model[3], name="weight", amount=0.3, dim=1)

    both(mixed)


def test_importance_scores():
    scores = torch.randn(10, 54)
    both(
        lambda prune, model: prune.l1_unstructured(
            model[3], "weight", 0.5, importance_scores=scores
        )
    )
    both(
        lambda prune, model: prune.ln_structured(
            model[3], "weight", 3, 2, 0, importance_scores=scores
        )
    )


@pytest.mark.parametrize("method", ["L1Unstructured", "RandomUnstructured"])
@pytest.mark.parametrize("amount", [0.4, 100])
def test_global_unstructured_twice(method, amount):
    def twice(prune, model):
        places = (
            (model[0], "weight"),
            (model[3], "weight"),
            (model[4], "weight"),
            (model[4], "bias"),
        )
        prune.global_unstructured(places, pruning_method=getattr(prune, method), amount=amount)
        prune.global_unstructured(places, pruning_method=getattr(prune, method), amount=amount)

    both(twice)


def test_global_importance_scores_and_custom_masks():
    scores = torch.randn(4, 10)

    def call(prune, model):
        places = [(model[3], "weight"), (model[4], "weight")]
        importance = {(model[4], "weight"): scores}
        prune.global_unstructured(
            places, prune.L1Unstructured, importance_scores=importance, amount=0.7
        )
        prune.custom_from_mask(model[4], "weight", scores > 0)
        prune.identity(model[4], "bias")

    both(call)


OPTIMIZERS = {
    "momentum": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, weight_decay=1e-2),
    "adamw": lambda p: torch.optim.AdamW(p, 0.01),
    "rmsprop": lambda p: torch.optim.RMSprop(p, 0.01, momentum=0.5),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_an_old_script_trains_to_the_same_weights(optimizer):
    """Prune while the optimizer carries momentum, train on with clipped gradients, prune again,
    train on, remove.
    """
    x, y = torch.randn(16, 3, 5, 5), torch.randint(4, (16,))

    def script(prune):
        model = net()
        step = OPTIMIZERS[optimizer](list(model.parameters()))
        for epoch in range(12):
            if epoch in (3, 7):
                # Torch ranks the weights of the last forward pass, not those of the
                # last step.
                model(x)
                prune.global_unstructured(
                    [(model[0], "weight"), (model[3], "weight")],
                    prune.L1Unstructured,
                    amount=0.5,
                )
            step.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            step.step()
        model(x)  # torch's own weights are only masked by the next forward pass
        prune.remove(model[0], "weight")
        prune.remove(model[3], "weight")
        return {name: value.clone() for name, value in sorted(model.state_dict().items())}

    theirs, ours = script(torch_prune), script(our_prune)
    assert list(theirs) == list(ours)
    for name, value in theirs.items():
        assert torch.equal(value == 0, ours[name] == 0), name
        # The clip norm sums the same numbers in another order; everything else is the same
        # arithmetic.
        torch.testing.assert_close(value, ours[name], rtol=1e-4, atol=1e-6)


def test_zeros_stay_after_a_step_with_old_momentum_and_in_a_copy():
    model = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    x = torch.randn(4, 8)
    model(x).square().sum().backward()
    optimizer.step()
    our_prune.l1_unstructured(model, "weight", 0.5)
    optimizer.zero_grad()
    model(x).square().sum().backward()
    optimizer.step()
    assert int((model.weight == 0).sum()) == 32
    assert int((model.weight.grad == 0).sum()) >= 32
    twin = copy.deepcopy(model)
    assert our_prune.is_pruned(twin)
    other = torch.optim.SGD(twin.parameters(), 0.1, momentum=0.9)
    for _ in range(3):
        twin(x).square().sum().backward()
        other.step()
    assert torch.equal(twin.weight == 0, model.weight_mask == 0)


def test_a_module_used_twice_in_one_pass_still_backpropagates():
    layer = our_prune.l1_unstructured(nn.Linear(4, 4), "weight", 0.5)
    layer(layer(torch.ones(2, 4))).sum().backward()
    assert torch.equal(layer.weight.grad[layer.weight_mask == 0], torch.zeros(8))


def test_the_model_stays_plain():
    model = our_prune.l1_unstructured(nn.Linear(4, 4), "weight", 0.5)
    assert list(model.state_dict()) == ["weight", "bias"]
    assert [name for name, _ in model.named_parameters()] == ["weight", "bias"]
    assert our_prune.is_pruned(nn.Sequential(model))
    our_prune.remove(model, "weight")
    assert not our_prune.is_pruned(model)
    assert not hasattr(model, "weight_mask")
    assert not model._forward_pre_hooks
    before = (model.weight == 0).sum()
    model(torch.ones(1, 4)).sum().backward()
    torch.optim.SGD(model.parameters(), 1.0).step()
    assert (model.weight == 0).sum() < before, "after remove() nothing holds the zeros any more"


def test_a_shared_parameter_is_counted_once():
    first, second = nn.Linear(6, 6, bias=False), nn.Linear(6, 6, bias=False)
    second.weight = first.weight
    our_prune.global_unstructured(
        [(first, "weight"), (second, "weight")], our_prune.L1Unstructured, amount=0.5
    )
    assert int((first.weight == 0).sum()) == 18
    our_prune.l1_unstructured(second, "weight", 0.5)
    assert int((first.weight == 0).sum()) == 27


def test_half_precision_and_frozen_parameters():
    model = net(torch.bfloat16).requires_grad_(False)
    our_prune.l1_unstructured(model[3], "weight", 0.25)
    assert int((model[3].weight_mask == 0).sum()) == 135


def test_ties_never_prune_too_much():
    layer = nn.Linear(4, 4)
    nn.init.ones_(layer.weight)
    our_prune.l1_unstructured(layer, "weight", 6)
    assert layer.weight_mask.flatten().tolist() == [1.0] * 10 + [0.0] * 6


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (
            lambda m: our_prune.l1_unstructured(m, "wieght", 0.5),
            ParameterError,
            "Did you mean 'weight'",
        ),
        (
            lambda m: our_prune.l1_unstructured(m, "weight", 1.5),
            ArgumentError,
            "amount=1.5 is not between 0 and 1",
        ),
        (
            lambda m: our_prune.l1_unstructured(m, "weight", 50),
            ArgumentError,
            "not between 0 and 16: 16 are left",
        ),
        (
            lambda m: our_prune.l1_unstructured(m, "weight", "x"),
            ArgumentError,
            "neither a number of entries nor",
        ),
        (
            lambda m: our_prune.ln_structured(m, "bias", 1, 2, 0),
            ArgumentError,
            "no channels along dim=0",
        ),
        (
            lambda m: our_prune.ln_structured(m, "weight", 1, 2, 2),
            ArgumentError,
            "no channels along dim=2",
        ),
        (lambda m: our_prune.remove(m, "weight"), ArgumentError, "is not pruned"),
        (
            lambda m: our_prune.custom_from_mask(m, "weight", torch.ones(3)),
            MaskError,
            r"shape \(4, 4\)",
        ),
        (
            lambda m: our_prune.global_unstructured([], our_prune.L1Unstructured, amount=1),
            ArgumentError,
            "no parameters",
        ),
        (
            lambda m: our_prune.global_unstructured(
                [(m, "weight")], torch_prune.LnStructured, amount=1, n=2
            ),
            ArgumentError,
            "only 'unstructured' methods can prune",
        ),
        (
            lambda m: our_prune.l1_unstructured(
                torch_prune.l1_unstructured(m, "weight", 0.5), "weight", 0.5
            ),
            ArgumentError,
            "call its remove",
        ),
    ],
)
def test_errors(call, error, text):
    model = nn.Linear(4, 4)
    with pytest.raises(error, match=text):
        call(model)
    assert isinstance(ArgumentError(""), ValueError), "scripts that catch ValueError go on working"


def custom(prune):
    """The method of the official tutorial, and a structured one, written for either library."""

    class EveryOther(prune.BasePruningMethod):
        PRUNING_TYPE = "unstructured"

        def compute_mask(self, t, default_mask):
            mask = default_mask.clone()
            mask.view(-1)[::2] = 0
            return mask

    class FirstChannels(prune.BasePruningMethod):
        PRUNING_TYPE = "structured"

        def __init__(self, count, dim):
            self.count, self.dim = count, dim

        def compute_mask(self, t, default_mask):
            mask = default_mask.clone()
            mask.narrow(self.dim, 0, self.count).zero_()
            return mask

    class Weak(prune.BasePruningMethod):
        PRUNING_TYPE = "global"

        def compute_mask(self, t, default_mask):
            return default_mask * (t.abs() > t.abs().median())

    return EveryOther, FirstChannels, Weak


def test_methods_of_ones_own_alone_and_after_each_other():
    def call(prune, model):
        every_other, first, weak = custom(prune)
        every_other.apply(model[0], "weight")
        first.apply(model[0], "weight", count=2, dim=0)
        first.apply(model[0], "weight", 1, -1)
        weak.apply(model[3], "weight", importance_scores=model[3].weight.exp())
        every_other.apply(model[3], "weight")
        first.apply(model[3], "bias", 3, dim=0)
        prune.l1_unstructured(model[4], "weight", 0.3)
        weak.apply(model[4], "weight")

    both(call)


def test_the_classes_of_torch_by_apply():
    def call(prune, model):
        prune.L1Unstructured.apply(model[0], "weight", 0.4)
        prune.LnStructured.apply(model[0], "weight", 2, n=1, dim=0)
        prune.RandomUnstructured.apply(model[3], "weight", amount=0.25)
        prune.RandomStructured.apply(model[3], "weight", amount=3, dim=1)
        prune.Identity.apply(model[4], "bias")
        prune.CustomFromMask.apply(model[4], "weight", mask=torch.eye(4, 10))

    both(call)


def test_a_method_of_ones_own_over_several_parameters_twice():
    def call(prune, model):
        places = [(model[0], "weight"), (model[3], "weight"), (model[3], "bias")]
        every_other, _, _ = custom(prune)
        prune.l1_unstructured(model[3], "weight", 0.1)
        prune.global_unstructured(places, pruning_method=every_other)
        scores = {places[1]: model[3].weight.abs() + 1}
        prune.global_unstructured(places, every_other, importance_scores=scores)

        class Halved(prune.L1Unstructured):
            def compute_mask(self, t, default_mask):
                return default_mask * (t > 0)

        prune.global_unstructured(places, Halved, amount=0.5)

    both(call)


def test_the_history_is_where_the_tutorial_looks_for_it():
    for prune in (torch_prune, our_prune):
        layer, (every_other, first, _) = nn.Linear(6, 4), custom(prune)
        alone = every_other.apply(layer, "weight")
        assert isinstance(alone, every_other)
        both = first.apply(layer, "weight", 1, dim=0)
        assert isinstance(both, torch_prune.PruningContainer)
        hooks = layer._forward_pre_hooks.values()
        (hook,) = (hook for hook in hooks if hook._tensor_name == "weight")
        assert list(hook) == list(both) == [alone, both[1]]
        assert isinstance(both[1], first)
        prune.remove(layer, "weight")
        assert not prune.is_pruned(layer)
        assert "weight" in dict(layer.named_parameters())


def test_a_method_that_returns_no_mask_is_refused_and_changes_nothing():
    class Wrong(our_prune.BasePruningMethod):
        PRUNING_TYPE = "unstructured"

        def compute_mask(self, t, default_mask):
            return torch.ones(2)

    layer = nn.Linear(4, 4)
    before = layer.weight.detach().clone()
    with pytest.raises(ArgumentError, match=r"compute_mask of Wrong returned \(2,\)"):
        Wrong.apply(layer, "weight")
    assert torch.equal(layer.weight, before) and not our_prune.is_pruned(layer)
    with pytest.raises(ArgumentError, match="int is not a BasePruningMethod"):
        our_prune.global_unstructured([(layer, "weight")], int)
