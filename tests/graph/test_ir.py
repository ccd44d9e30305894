"""Messages name the user's model and its modules, whatever of ours stands around it."""

import pytest
import torch
from torch import nn

import secateurs as sc
from secateurs.errors import EmptySelectionError, SecateursError
from secateurs.graph import Place
from secateurs.graph.ir import Wrapper, kind_of, own_name, own_place


class Recurrent(nn.Module):
    """Its own names begin like ours."""

    def __init__(self):
        super().__init__()
        self.inner = nn.LSTM(3, 4, batch_first=True)

    def forward(self, x):
        return self.inner(x)[0]


class Failing(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 2)

    def forward(self, x):
        return self.fc(x.reshape(5, -1))


class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 2)

    def forward(self, x):
        return self.fc(x) if x.sum() > 0 else -self.fc(x)


class Single(nn.Module):
    """Names one precision: float64 does not run."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 2)

    def forward(self, x):
        return self.fc(x.float()), x


class Curved(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 2), nn.Sigmoid())

    def forward(self, x):
        y = self.body(x)
        return y, y + 1


ASKED = {
    "compact": sc.compact,
    "prune_channels_": lambda m, x: sc.prune_channels_(m, x, channels=0.5),
    "normalize_": sc.normalize_,
    "rescale_random_": sc.proof.rescale_random_,
}


@pytest.mark.parametrize("kind", [Recurrent, Failing, Branching, Single, Curved])
@pytest.mark.parametrize("name", ASKED)
def test_no_message_names_what_is_ours(name, kind, caplog):
    model = kind().eval()
    x = torch.zeros(1, 2, 3) if kind is Recurrent else torch.zeros(1, 3)
    try:
        ASKED[name](model, x)
    except SecateursError as error:
        text = str(error)
        assert "AllOutputs" not in text and "Whole" not in text and "Tracee" not in text
        assert "inner.fc" not in text and "inner.body" not in text
        assert "inner.inner" not in text
        if kind is Curved and not isinstance(error, EmptySelectionError):
            assert "body.1 (Sigmoid)" in text


def test_names_inside_of_two_wrappers():
    model = Wrapper(Wrapper(nn.Sequential(nn.Linear(1, 1))))
    assert kind_of(model) == "Sequential"
    assert own_name("inner.inner.0.weight", model) == "0.weight"
    assert own_name("inner.inner", model) == ""
    place = Place(module="inner", kind="Wrapper", operation="aten.cat.default")
    assert str(own_place(place, model)) == ("aten.cat.default at the model itself (Sequential)")


def test_the_users_own_inner_keeps_its_name():
    model = Wrapper(Recurrent())
    assert own_name("inner.inner.weight", model) == "inner.weight"
    assert own_name("inner.weight", Recurrent()) == "inner.weight"
