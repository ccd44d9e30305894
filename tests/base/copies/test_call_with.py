"""A model run with other tensors keeps its own: the same objects, ties included."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import secateurs as sc
from secateurs.base.copies import call_with
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


FILES = sorted((Path(__file__).parents[3] / "src").rglob("*.py"))
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
    assert callers == ["copies.py"]
