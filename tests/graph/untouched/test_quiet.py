"""A refusal is one message: nothing of the tracer's own words stands before it."""

import logging
import sys
import warnings

import pytest
import torch
from torch import nn

import secateurs as sc
from secateurs.errors import SecateursError
from secateurs.graph.untouched import quietly
from secateurs.ship.c_source import c_source


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 2)


class Branching(Layer):
    def forward(self, x):
        return self.fc(x) if x.sum() > 0 else -self.fc(x)


class Number(Layer):
    def forward(self, x):
        return self.fc(x) * float(x.sum())


class Picked(Layer):
    def forward(self, x):
        return self.fc(x)[:, x[0, :2] > 0]


class Looped(Layer):
    def forward(self, x):
        for _ in range(int(x.abs().sum()) + 1):
            x = x * 2
        return self.fc(x)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(3, 4, batch_first=True)

    def forward(self, x):
        return self.rnn(x[:, None])[0]


class Talking(Layer):
    """What the user's code says is the user's."""

    def forward(self, x):
        print("printed")
        print("to stderr", file=sys.stderr)
        warnings.warn("warned", stacklevel=1)
        logging.getLogger("mine").error("logged")
        return self.fc(x)


def _exported(suffix):
    return lambda model, x, folder: sc.export(model, folder / f"m{suffix}", x)


ASKED = {
    "capture": lambda m, x, _: sc.capture(m, x),
    "macs": lambda m, x, _: sc.macs(m, x),
    "compact": lambda m, x, _: sc.compact(m, x),
    "prune_channels_": lambda m, x, _: sc.prune_channels_(m, x, channels=0.5),
    "normalize_": lambda m, x, _: sc.normalize_(m, x),
    "accelerate": lambda m, x, _: sc.accelerate(m, x, tune="guess", keep="always"),
    "c_source": lambda m, x, _: c_source(m, x),
    "pt2": _exported(".pt2"),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", [Branching, Number, Picked, Looped, Recurrent])
@pytest.mark.parametrize("name", ASKED)
def test_nothing_is_said_before_the_message(name, kind, capfd, caplog, tmp_path):
    logging.getLogger("secateurs").setLevel(logging.ERROR)
    model = kind().eval()
    try:
        ASKED[name](model, torch.randn(2, 3), tmp_path)
    except SecateursError:
        pass
    finally:
        logging.getLogger("secateurs").setLevel(logging.NOTSET)
    said = capfd.readouterr()
    assert said.out + said.err == ""
    loud = [r for r in caplog.records if r.levelno >= logging.WARNING]
    assert not loud


def test_onnx_is_written_without_a_word(capfd, caplog, tmp_path):
    pytest.importorskip("onnxscript")

    class Repeating(nn.Module):
        """Constants that cannot be folded: the optimizer tried aloud."""

        def __init__(self):
            super().__init__()
            self.conv, self.fc = nn.Conv2d(1, 4, 3), nn.Linear(16, 2)

        def forward(self, x):
            h = self.conv(x)
            return self.fc(h.reshape(h.shape[0], 4, -1).mean(2).repeat(1, 4))

    sc.export(Repeating().eval(), tmp_path / "m.onnx", torch.zeros(1, 1, 6, 6))
    said = capfd.readouterr()
    assert said.out + said.err == ""
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]


@pytest.mark.parametrize("name", ["capture", "compact", "accelerate", "pt2"])
def test_what_the_users_code_says_is_heard(name, capfd, caplog, tmp_path):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ASKED[name](Talking().eval(), torch.zeros(2, 3), tmp_path)
    said = capfd.readouterr()
    assert "printed" in said.out and "to stderr" in said.err
    assert any("warned" in str(w.message) for w in caught)
    assert "logged" in caplog.text


def test_everything_is_as_before_afterwards():
    logger, stream = logging.getLogger("torch.export"), sys.stderr
    level, filters = logger.level, list(warnings.filters)
    with pytest.raises(KeyError), quietly():
        assert not logger.isEnabledFor(logging.ERROR)
        raise KeyError
    assert (logger.level, sys.stderr, warnings.filters) == (level, stream, filters)


def test_who_wishes_to_hear_it_does(monkeypatch):
    monkeypatch.setenv("TORCH_LOGS", "+export")
    stream = sys.stderr
    with quietly():
        assert sys.stderr is stream
