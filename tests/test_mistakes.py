"""Mistakes a newcomer makes, in one table: each is named with its place, value and way out."""

import pytest
import torch
from torch import nn

import secateurs as sc
import secateurs_lab as lab
from secateurs.base.step import Step
from secateurs.errors import ArgumentError, SecateursError
from secateurs.masks import from_torch_prune
from secateurs.theory import conv_operator_norm, plan, sketch_mask


def net():
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))


def prune(*args, **fields):
    return sc.prune_(*(args or (net(), "magnitude")), **{"sparsity": 0.5, **fields})


def parallel():
    return nn.DataParallel(net())


def held(masks, optimizer=None):
    model = net()
    return sc.hold(model, masks, optimizer or torch.optim.SGD(model.parameters(), lr=0.1))


X = torch.zeros(2, 6)


class Tied(nn.Module):
    """An embedding and a head that share one tensor."""

    def __init__(self):
        super().__init__()
        self.emb, self.head = nn.Embedding(5, 4), nn.Linear(4, 5, bias=False)
        self.head.weight = self.emb.weight

    def forward(self, x):
        return self.head(self.emb(x))


def factorized(model=None, **options):
    return sc.optim.FactorizedSGD((model or net()).parameters(), **options)


def gated(**options):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return sc.optim.DGating(model, optimizer, strength=1e-3, **options)


def any_base(**options):
    options = {"base": torch.optim.AdamW, **options}
    return sc.optim.Factorized(net().parameters(), **options)


def snip(batch, loss=nn.functional.cross_entropy):
    return sc.score(net(), "snip", batch=batch, loss=loss)


def choose(scores=None, **options):
    options = options or {"sparsity": 0.5}
    return sc.select({"a": torch.rand(4)} if scores is None else scores, **options)


def certified(other=None, **domain):
    return sc.certify(net(), net() if other is None else other, **domain)


def zeroed():
    model = net()
    model[0].weight.data.zero_()
    return model


def own_factors(shape):
    model = net()
    optimizer = sc.optim.FactorizedSGD(model.parameters())
    optimizer.set_factors(model[0].weight, torch.ones(shape))


def labels(*values):
    return torch.tensor(values)


MISTAKES = {
    "a state dict": (
        lambda: prune(net().state_dict(), "magnitude"),
        "load_state_dict",
    ),
    "a class": (
        lambda: prune(nn.Linear, "magnitude"),
        "class Linear, not a model: call it",
    ),
    "a tensor as model": (
        lambda: prune(torch.ones(2), "magnitude"),
        "model is a Tensor",
    ),
    "no model": (lambda: prune(None, "magnitude"), "model is a NoneType"),
    "a wrapped model": (lambda: prune(parallel(), "snip"), r"give model\.module"),
    "a seed": (lambda: prune(generator=0), r"generator=0 is a int.*manual_seed\(0\)"),
    "a generator by name": (
        lambda: prune(generator="cpu"),
        "generator='cpu' is a str",
    ),
    "a score that is none": (
        lambda: prune(net(), "magnitud"),
        "Did you mean 'magnitude'",
    ),
    "a percentage": (lambda: prune(sparsity=90), "not between 0 and 1"),
    "two amounts": (lambda: prune(density=0.5), "give one of sparsity, density"),
    "no amount": (
        lambda: sc.prune_(net(), "magnitude"),
        "how much to keep is missing",
    ),
    "a typo in a field": (lambda: prune(patern="2:4"), "Did you mean 'pattern'"),
    "a scope that is none": (lambda: prune(scope="layers"), "Did you mean 'layer'"),
    "a pattern that is none": (
        lambda: prune(pattern="filters"),
        "Did you mean 'filter'",
    ),
    "a pattern that does not fit": (
        lambda: prune(pattern="4:16"),
        r"'0\.weight' \(8, 6\) has 6",
    ),
    "no rounds": (lambda: prune(rounds=0), "rounds=0 is not a whole number"),
    "a module as where": (lambda: prune(where=nn.Linear(2, 2)), "given a module"),
    "a parameter as where": (
        lambda: prune(where=net()[0].weight),
        "given a tensor of shape",
    ),
    "a type that is not a module": (lambda: prune(where=int), "is not a type of module"),
    "a number as where": (lambda: prune(where=3), "neither a glob"),
    "a glob of nothing": (lambda: prune(where="conv*"), r"no parameter 'conv\*'"),
    "an empty where": (
        lambda: prune(where=[]),
        "no parameter of Sequential is chosen",
    ),
    "a predicate of one": (
        lambda: prune(where=lambda name: True),
        "takes 1 arguments",
    ),
    "only biases": (
        lambda: prune(where=nn.ReLU),
        "no parameter of Sequential is chosen",
    ),
    "snip without data": (lambda: prune(net(), "snip"), "batch="),
    "of something": (lambda: prune(of="rest"), "of='rest'; it is 'all'"),
    "a mask of another shape": (
        lambda: prune(within={"0.weight": torch.ones(2, 2, dtype=torch.bool)}),
        r"shape \(8, 6\), but its mask has shape \(2, 2\)",
    ),
    "a float mask": (lambda: held({"0.weight": torch.ones(8, 6)}), "not of booleans"),
    "a list as mask": (lambda: held({"0.weight": [True]}), "is a list, not a tensor"),
    "no masks": (lambda: held({}), "there are no masks"),
    "a mask of nobody": (
        lambda: held({"3.weight": torch.ones(1, dtype=torch.bool)}),
        r"no parameter '3\.weight'",
    ),
    "masks that are none": (lambda: held(torch.ones(2)), "masks are a Tensor"),
    "a scheduler for an optimizer": (
        lambda: held(prune(), optimizer=object()),
        "torch.optim.Optimizer, not object",
    ),
    "a checkpoint": (
        lambda: from_torch_prune({"state_dict": {}}),
        r"\['state_dict'\]",
    ),
    "a dense state dict": (
        lambda: from_torch_prune(net().state_dict()),
        "no mask among the 4",
    ),
    "a factorized depth of 1": (
        lambda: sc.optim.FactorizedSGD(net().parameters(), depth=1),
        "depth=1 is not",
    ),
    "a start that is none": (
        lambda: sc.optim.FactorizedSGD(net().parameters(), init="pretraind"),
        "Did you mean 'pretrained'",
    ),
    "a target without steps": (
        lambda: sc.optim.FactorizedSGD(net().parameters(), target_sparsity=0.9),
        "needs steps=",
    ),
    "a loss as closure": (
        lambda: sc.optim.FactorizedSGD(net().parameters()).step(torch.zeros(())),
        "closure is a Tensor",
    ),
    # Models and examples.
    "a name for a model": (
        lambda: prune("resnet-18", "magnitude"),
        r"model is 'resnet-18', not .*models\.build\(name\)",
    ),
    "an optimizer for a model": (
        lambda: prune(torch.optim.SGD(net().parameters(), lr=1), "magnitude"),
        "model is a SGD.*not what trains it",
    ),
    "parameters for a model": (
        lambda: prune(list(net().parameters()), "magnitude"),
        "model is a list.*where= chooses among them",
    ),
    "a captured state dict": (
        lambda: sc.capture(net().state_dict(), X),
        "OrderedDict with 4 entries.*load_state_dict",
    ),
    "a captured class": (lambda: sc.capture(nn.Linear, X), "class Linear.*call it"),
    "model and example swapped": (
        lambda: sc.capture(X, net()),
        "model is a Tensor, not a torch.nn.Module",
    ),
    "an example that is a model": (
        lambda: sc.capture(net(), net()),
        "the model comes first, then an example",
    ),
    "an example that is a number": (
        lambda: sc.capture(net(), 6),
        "the example is a int: give a tensor",
    ),
    "no example": (lambda: sc.path_norm(net(), None), "the example is a NoneType"),
    "an array as example": (
        lambda: sc.capture(net(), X.numpy()),
        "ndarray.*give (a tensor|tensors)",
    ),
    "numbers as example": (
        lambda: sc.path_norm(net(), [1.0, 2.0]),
        "holds a float; give tensors only",
    ),
    "an empty example": (
        lambda: sc.capture(net(), X[:0]),
        r"shape \(0, 6\) has no sample; give a batch",
    ),
    "a step of time as one number": (
        lambda: sc.macs(net(), (X, torch.tensor(3))),
        r"holds a single number.*once for each sample, torch.tensor\(\[3\]\) for one",
    ),
    "the same, for a program": (
        lambda: sc.accelerate(net().eval(), (X, torch.tensor(3)), keep="always"),
        r"holds a single number.*once for each sample",
    ),
    "an example without a batch": (
        lambda: sc.capture(net(), X[0]),
        "runs on the example, but not on its first sample alone",
    ),
    "an example of another width": (
        lambda: sc.capture(net(), torch.zeros(1, 5)),
        r"shape \[\(1, 5\)\].*Give an input of the right shape",
    ),
    "batch norm in training": (
        lambda: sc.path_norm(nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3)), X),
        r"call model\.eval\(\)",
    ),
    "a keyword the model has not": (
        lambda: sc.capture(net(), {"inputs": X}),
        "unexpected keyword argument 'inputs'",
    ),
    "weights on meta": (
        lambda: sc.capture(net().to("meta"), X),
        r"'0\.weight' is on the meta device.*load the weights",
    ),
    "an activation that is not covered": (
        lambda: sc.path_norm(nn.Sequential(nn.Linear(6, 3), nn.GELU()), X),
        r"aten\.gelu\.default at 1 \(GELU\).*graph\.lowers",
    ),
    "costs of a number": (lambda: sc.path_costs(3, X), "model is a int"),
    "a diagnosis of a number": (lambda: sc.diagnose(3), "model is a int"),
    "a fast dict": (
        lambda: sc.accelerate(net().state_dict(), X),
        "load_state_dict",
    ),
    "a fast model in training": (
        lambda: sc.accelerate(net().train(), X),
        r"in training mode: call model\.eval\(\)",
    ),
    "compact without an example": (
        lambda: sc.compact(net().eval(), 3),
        "the example is a int",
    ),
    "a seed to rescale": (
        lambda: sc.proof.rescale_random_(net(), X, generator=0),
        "generator=0 is a int",
    ),
    "factors to rescale": (
        lambda: sc.proof.rescale_random_(net(), X, factors=(0,)),
        r"factors = \[0\]: give positive",
    ),
    # Built networks, data, steps.
    "classes under another name": (
        lambda: lab.models.build("resnet-20", num_classes=10),
        "no option 'num_classes'. Did you mean 'classes'",
    ),
    "classes as text": (
        lambda: lab.models.build("lenet-5", classes="10"),
        "classes='10' of lenet-5 is not a whole number",
    ),
    "a network that is none": (
        lambda: lab.models.build("resnet20"),
        "Did you mean 'resnet-20'",
    ),
    "a seed to build": (
        lambda: lab.models.build("lenet-5", generator=0),
        "generator=0 is a int",
    ),
    "images too small": (
        lambda: lab.models.build("vgg-16", size=8),
        "8×8 images.*at least 32 pixels",
    ),
    "a data set that is none": (
        lambda: lab.data.load("mnsit"),
        "Did you mean 'mnist'",
    ),
    "evaluated on a tensor": (
        lambda: lab.train.evaluate(net(), X),
        r"data is a Tensor, not a lab\.data\.Dataset",
    ),
    "a length without a unit": (
        lambda: Step.parse("3"),
        "'3' has no unit: write '3ep'",
    ),
    "a length in words": (lambda: Step.parse("3 epochs"), "'3 epochs' is not a step"),
    # Scores and selections.
    "a score by another name": (
        lambda: sc.score(net(), "snp"),
        "Did you mean 'snip'",
    ),
    "a batch that is a number": (lambda: snip(3), "batch=3 is a int: give"),
    "a batch without targets": (lambda: snip(X), "batch 0 has no targets"),
    "a loss by name": (
        lambda: snip((X, labels(0, 1)), "ce"),
        "loss='ce' is a str: give a function",
    ),
    "targets of another length": (
        lambda: snip((X, labels(0, 1, 2))),
        r"outputs a tensor of shape \(2, 4\), targets a tensor of shape \(3,\)",
    ),
    "a class that is none": (
        lambda: snip((X, labels(0, 9))),
        "Target 9 is out of bounds",
    ),
    "no loss": (lambda: snip((X, labels(0, 1)), None), "needs loss="),
    "scores in a list": (lambda: choose([torch.ones(3)]), "scores are a list"),
    "scores of a model": (lambda: choose(net()), "scores are a Sequential"),
    "no scores": (lambda: choose({}), "no scores to select from"),
    "a score of NaN": (
        lambda: choose({"a": torch.tensor([1.0, float("nan")])}),
        "'a' has 1 NaN",
    ),
    "whole scores": (
        lambda: choose({"a": torch.ones(4).long()}),
        r"with \.float\(\)",
    ),
    "negative chances": (
        lambda: choose({"a": -torch.ones(4)}, sparsity=0.5, how="sample"),
        "negative values.*shift them",
    ),
    "a percentage as text": (lambda: choose(sparsity="90%"), "give 0.9, no text"),
    "a number as text": (lambda: choose(sparsity="0.9"), "give 0.9, no text"),
    "a word for a number": (lambda: choose(sparsity="a lot"), "0.9 is nine tenths"),
    "a tensor for a number": (
        lambda: choose(sparsity=torch.tensor(0.5)),
        "not a finite number: give 0.5",
    ),
    "True for a number": (lambda: choose(sparsity=True), "sparsity=True is not"),
    "a negative sparsity": (lambda: choose(sparsity=-0.1), "not between 0 and 1"),
    "a compression below 1": (lambda: choose(compression=0.5), "total / kept"),
    "more than is left": (
        lambda: choose(density=0.5, within={"a": torch.tensor([True, False, False, False])}),
        "leave only 1",
    ),
    "a mask of another score": (
        lambda: choose(sparsity=0.5, within={"b": torch.ones(4).bool()}),
        "no score 'b'. Known: a",
    ),
    # Masks and files.
    "masks swapped with the model": (
        lambda: sc.apply_({"0.weight": torch.ones(8, 6).bool()}, net()),
        "model is a dict",
    ),
    "masks that are missing": (
        lambda: sc.apply_(net(), None),
        "masks are a NoneType",
    ),
    "a misspelt mask": (
        lambda: sc.apply_(net(), {"0.weigth": torch.ones(8, 6).bool()}),
        r"Did you mean '0\.weight'",
    ),
    "a mask of whole numbers": (
        lambda: sc.apply_(net(), {"0.weight": torch.ones(8, 6).int()}),
        r"torch\.int32 values, not of booleans",
    ),
    "a mask file that is none": (
        lambda: sc.masks.load_masks(__file__),
        "not a safetensors file",
    ),
    "a mask file that is away": (
        lambda: sc.masks.load_masks("absent.masks"),
        r"absent\.masks cannot be read",
    ),
    "a folder that is away": (
        lambda: sc.masks.save_masks({"a": torch.ones(2).bool()}, "absent/folder/masks"),
        "cannot be written.*a folder that exists",
    ),
    "masks of numbers saved": (
        lambda: sc.masks.save_masks({"a": torch.ones(2)}, "x.masks"),
        "only bool tensors",
    ),
    "an export of another kind": (
        lambda: sc.export(net().eval(), "model.pth", X),
        r"no format of an exported file '\.pth'",
    ),
    # Holding and factorizing.
    "an optimizer's class": (
        lambda: held({"0.weight": torch.ones(8, 6).bool()}, torch.optim.SGD),
        r"torch\.optim\.Optimizer, not type",
    ),
    "another model's optimizer": (
        lambda: held(
            {"0.weight": torch.zeros(8, 6).bool()},
            torch.optim.SGD(net().parameters(), lr=0.1),
        ),
        "is not among the parameters of this SGD",
    ),
    "a model for parameters": (
        lambda: sc.optim.FactorizedSGD(net()),
        r"params is a Sequential: give model\.named_parameters\(\)",
    ),
    "no parameters": (lambda: sc.optim.FactorizedSGD([]), "params is empty"),
    "weight decay": (
        lambda: factorized(weight_decay=1e-4),
        "weight_decay=0.0001: the penalty on the factors is strength=",
    ),
    "options of Adam": (lambda: factorized(betas=(0.9, 0.99)), "Factorized.*AdamW"),
    "a misspelt option": (
        lambda: factorized(strenght=1.0),
        "Did you mean 'strength'",
    ),
    "a seed for a start": (
        lambda: factorized(init="dwf", generator=0),
        "generator=0 is a int",
    ),
    "a rate as text": (lambda: factorized(lr="0.1"), "lr='0.1' is not a finite"),
    "a negative strength": (
        lambda: factorized(strength=-1.0),
        "strength=-1.0 is not",
    ),
    "a target in percent": (
        lambda: factorized(target_sparsity=90, steps=10),
        "it is the share of zeros",
    ),
    "a schedule that is none": (
        lambda: factorized(schedule="cosine", steps=10),
        "no λ schedule 'cosine'",
    ),
    "a grouping that is none": (
        lambda: gated(groups="filters"),
        "no grouping 'filters'",
    ),
    "a momentum above 1": (lambda: factorized(momentum=1.5), r"outside \[0, 1\)"),
    "zeros without a decision": (
        lambda: factorized(zeroed(), init="pretrained"),
        "has 48 zeros of 48.*zeros='revive'",
    ),
    "names where there are none": (
        lambda: factorized(where="0.weight"),
        r"model\.named_parameters\(\)",
    ),
    "a parameter that is none": (
        lambda: factorized().factors("0.weight"),
        r"no parameter '0\.weight'. Known: 0, 1",
    ),
    "too few factors": (
        lambda: own_factors((2, 8, 6)),
        r"stacked \(3, 8, 6\), not \(2, 8, 6\)",
    ),
    "a threshold that is none": (
        lambda: factorized().collapse_(threshold="gaps"),
        "Known: a number, 'eps', 'gap'",
    ),
    "another model to collapse": (
        lambda: factorized().collapse_(nn.Linear(2, 2)),
        "none of the 4 parameters.*the model it was made for",
    ),
    "another optimizer's state": (
        lambda: factorized().load_state_dict(
            torch.optim.SGD(net().parameters(), lr=0.1).state_dict()
        ),
        "cannot resume.*factors of '0'",
    ),
    "a base already made": (
        lambda: any_base(base=torch.optim.SGD(net().parameters(), lr=0.1)),
        r"a SGD already made.*torch\.optim\.SGD",
    ),
    "a base that steps often": (
        lambda: any_base(base=torch.optim.LBFGS),
        "base=LBFGS cannot move factors",
    ),
    "an option the base has not": (
        lambda: any_base(base_kwargs={"learning_rate": 0.1}),
        "no option of AdamW 'learning_rate'",
    ),
    "decay of the base": (
        lambda: any_base(base_kwargs={"weight_decay": 0.1}),
        "the penalty on the factors is strength=",
    ),
    "half a factor": (lambda: any_base(depth=2.5), "depth=2.5 is not a whole number"),
    # Bounds, plans, sketches.
    "a certificate for nothing": (certified, "no domain was given: give box="),
    "a negative radius": (
        lambda: certified(around=X[:1], radius=-0.1),
        "radius=-0.1: a radius is",
    ),
    "a method that is none": (
        lambda: certified(around=X[:1], radius=0.1, methods=("pathmetric",)),
        "Did you mean 'path-metric'",
    ),
    "an empty box": (
        lambda: certified(box=(torch.ones(6), torch.zeros(6))),
        "lo > hi at 6 coordinates",
    ),
    "a box that is a number": (lambda: certified(box=3), r"box is int; give a pair"),
    "two different models": (
        lambda: certified(nn.Linear(6, 4), around=X[:1], radius=0.1),
        "differ in structure, first at aten.linear",
    ),
    "a plan of a name": (lambda: plan("lenet-5", alpha=0.5), "neither a model nor"),
    "a plan of a negative width": (
        lambda: plan([784, 100, -3, 10], alpha=0.5),
        "width d_2 = -3 is below 1",
    ),
    "a plan by another scheme": (
        lambda: plan([784, 100, 100, 10], alpha=0.5, scheme="rand"),
        "scheme = 'rand'.*'random'",
    ),
    "an alpha above 1": (
        lambda: plan([784, 100, 100, 10], alpha=2),
        "alpha = 2 is not",
    ),
    "chances that sum to more": (
        lambda: sketch_mask(torch.tensor([0.5, 0.6]), 3),
        "p sums to 1.1.*Divide it by its sum",
    ),
    "no draw": (
        lambda: sketch_mask(torch.tensor([0.5, 0.5]), 0),
        "s = 0 is not a whole",
    ),
    "the norm of a matrix as convolution": (
        lambda: conv_operator_norm(torch.randn(3, 3), 8),
        r"weight has shape \(3, 3\)",
    ),
    "a tied name left out": (
        lambda: prune(Tied(), "magnitude", where=["*", "!head*"]),
        r"emb\.weight \(excluded by where through its other name 'head\.weight'\)",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named(mistake):
    make, message = MISTAKES[mistake]
    with pytest.raises(SecateursError, match=message):
        make()


def test_there_are_a_hundred_of_them():
    assert len(MISTAKES) >= 100


def test_training_refuses_settings_it_does_not_know():
    with pytest.raises(ArgumentError, match="Did you mean 'schedule'"):
        lab.train.fit_(nn.Linear(3, 2), None, optimizer=None, shedule=None)
