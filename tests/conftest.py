"""Shared set-up: derandomised property tests, one default seed, no state carried from test to
test.
"""

import gc
import logging
import signal

import pytest
import torch
import torch._dynamo
from hypothesis import HealthCheck, settings

from tiny_networks import fully_connected, randomize

settings.register_profile(
    "house",
    derandomize=True,
    deadline=None,
    max_examples=50,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("house")


# Hundreds of thousands of objects that stay: no collection has to go through them again. Any
# optimizer and any export loads `torch._dynamo`, so it is here by then.
gc.collect()
gc.freeze()

# pytest adds its handlers to every logger that keeps its records to itself, at each phase of each
# test; torch has forty of those.
for logger in list(logging.root.manager.loggerDict.values()):
    if isinstance(logger, logging.Logger) and logger.name.startswith("torch"):
        logger.propagate = True

# `torch.manual_seed` notes the whole stack for each kind of device that is not there.
seed = torch.manual_seed if torch.cuda.is_available() else torch.default_generator.manual_seed


@pytest.fixture(autouse=True)
def _fixed_seed():
    seed(0)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture(autouse=True)
def _nothing_remembered(monkeypatch):
    # Timings of layers from earlier runs would let tests of the timing pass unseen.
    monkeypatch.setenv("SECATEURS_TUNING", "0")


@pytest.fixture
def heard():
    """Ctrl-C, which a run that a shell has sent to the background ignores from its start."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.fixture
def dense(generator):
    """A dense network."""
    return randomize(fully_connected(), generator)


@pytest.fixture
def x():
    """Inputs for it."""
    return torch.randn(4, 5, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def run(capfd):
    """`run("prune", path)` -> (exit code, standard output, standard error)."""
    from secateurs.cli import main

    def called(*arguments):
        capfd.readouterr()
        with pytest.raises(SystemExit) as stopped:
            main([str(argument) for argument in arguments])
        return stopped.value.code, *capfd.readouterr()

    return called
