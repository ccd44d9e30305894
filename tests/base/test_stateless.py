"""A model run with other tensors keeps its own: the same objects, ties included."""

import threading
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import secateurs as sc
from secateurs.base.stateless import call_with, evaluating, private_copy
from secateurs.graph import capture
from secateurs.proof import normalize_, rescale_random_


class Twice(nn.Module):
    """One module under two names, one of its tensors tied to another module; a shared norm."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.one, self.head = (
            nn.Linear(3, 3),
            nn.Linear(3, 3),
            nn.Linear(3, 2),
        )
        self.norm = nn.BatchNorm1d(3)
        self.one.bias = self.stem.bias
        self.two, self.again = self.one, self.norm

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.stem(x)))
        return self.head(self.again(torch.relu(self.two(torch.relu(self.one(x))))))


def objects(model: nn.Module) -> dict[str, int]:
    named = [
        *model.named_parameters(remove_duplicate=False),
        *model.named_buffers(remove_duplicate=False),
    ]
    return {name: id(tensor) for name, tensor in named}


@pytest.fixture
def model() -> Twice:
    torch.manual_seed(0)
    return Twice().double().eval()


FILES = sorted((Path(__file__).parents[2] / "src").rglob("*.py"))
X = torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(4, 3)

USES = {
    "capture": lambda model: capture(model, X[:1]),
    "normalize_": lambda model: normalize_(model, X[:1]),
    "rescale_random_": lambda model: rescale_random_(model, X[:1]),
    "compact": lambda model: sc.compact(model, X[:1]),
    "certify": lambda model: sc.certify(model, model, around=X[:1], radius=0.1, restarts=0),
    "call_with": lambda model: call_with(model, {"two.weight": torch.eye(3).double()}, (X,)),
}


@pytest.mark.parametrize("name", USES)
def test_the_model_holds_the_objects_it_held(model, name):
    before = objects(model)
    USES[name](model)
    assert objects(model) == before
    assert all(isinstance(p, nn.Parameter) for p in model.parameters())


def test_after_an_error_too(model):
    before = objects(model)
    with pytest.raises(RuntimeError):
        call_with(model, {"one.weight": torch.eye(2).double()}, (X,))
    assert objects(model) == before


@pytest.mark.parametrize("name", ["stem.bias", "one.bias", "two.bias"])
def test_a_tied_tensor_is_replaced_under_each_of_its_names(model, name):
    other = torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64)
    answer = call_with(model, {name: other}, (X,))
    with torch.no_grad():
        model.stem.bias.copy_(other)
    assert torch.equal(answer, model(X))


def test_gradients_and_batches_of_models_pass_through(model):
    weights = torch.stack([torch.eye(3), 2 * torch.eye(3)]).double()

    def loss(weight: Tensor) -> Tensor:
        return call_with(model, {"one.weight": weight}, (X,)).square().sum()

    found = torch.func.vmap(torch.func.grad(loss))(weights)
    alone = torch.stack([torch.func.grad(loss)(weight) for weight in weights])
    assert torch.allclose(found, alone) and bool(found.any())


def test_nothing_else_calls_torch_directly():
    """`functional_call` breaks ties where a module has two names; `call_with` does not."""
    callers = [path.name for path in FILES if "functional_call" in path.read_text(encoding="utf-8")]
    assert callers == ["stateless.py"]


def test_every_module_gets_its_own_mode_back_from_evaluation_also_after_an_error():
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(), nn.Sequential(nn.BatchNorm1d(2)))
    model[1].eval()
    before = [module.training for module in model.modules()]
    with pytest.raises(ZeroDivisionError), evaluating(model):
        assert not any(module.training for module in model.modules())
        _ = 1 / 0
    assert (
        [module.training for module in model.modules()]
        == before
        == [True, True, False, *[True] * 2]
    )


def test_a_private_copy_has_the_values_and_neither_gradients_nor_storage():
    model = Twice()
    model(torch.ones(2, 3)).sum().backward()
    copied = private_copy(model, error=sc.errors.ScoreError)
    assert copied.stem.bias is copied.one.bias
    for own, other in zip(model.parameters(), copied.parameters(), strict=True):
        assert torch.equal(own, other)
        assert own.data_ptr() != other.data_ptr()
        assert other.grad is None and not other.requires_grad


def test_a_private_copy_keeps_what_empty_collections_of_the_model_carry():
    """Only plain dicts are made anew: others may hold more than their entries."""

    class Labels(list):
        language = "none"

    layer = nn.Linear(2, 2)
    layer.labels = Labels()
    layer.labels.language = "Latin"
    layer.names = {}
    copied = private_copy(layer, error=sc.errors.ScoreError)
    assert copied.labels == [] and copied.labels.language == "Latin"
    assert copied.labels is not layer.labels
    assert copied.names == {} and copied.names is not layer.names


@pytest.mark.parametrize("error", [sc.errors.ScoreError, sc.errors.ShipError])
def test_what_cannot_be_copied_is_refused_by_name_with_the_error_of_the_room(error):
    layer = nn.Linear(2, 2)
    layer.lock = threading.Lock()
    with pytest.raises(error, match="Linear cannot be copied .*remove locks, open files"):
        private_copy(layer, error=error)
