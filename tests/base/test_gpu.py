"""Where kernels in Triton run: on a card, if nobody has turned them off, and never on one that is
only pretended. Whatever goes wrong with them ends nothing.
"""

import logging

import pytest
import torch

from secateurs.base import gpu

CARD = torch.device("cuda:0")
log = logging.getLogger("secateurs.test")


def ask(make=lambda device: "made", device=CARD):
    return gpu.by_triton(device, make, what="this", fallback="that is taken", log=log)


@pytest.fixture
def card(monkeypatch):
    """A torch that was built for CUDA, a card, and Triton."""
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(gpu, "find_spec", lambda name: object())
    return monkeypatch


def test_a_card_with_triton_takes_them(card):
    assert ask() == "made"
    assert ask(device=torch.device("cpu")) is None


@pytest.mark.parametrize("missing", ["CUDA", "a newer card", "Triton", "the will"])
def test_without_a_word_they_are_left_where_something_is_missing(card, missing, caplog):
    if missing == "CUDA":  # also of a torch that is only pretended to have it
        card.setattr(torch.version, "cuda", None)
    elif missing == "a newer card":
        card.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    elif missing == "Triton":
        card.setattr(gpu, "find_spec", lambda name: None)
    else:
        card.setenv("SECATEURS_TRITON", "0")
    assert ask() is None and not caplog.records


def test_what_goes_wrong_is_said_and_ends_nothing(card, caplog):
    def fails(device):
        raise OSError("no C compiler\nfound")

    assert ask(fails) is None
    assert caplog.messages == ["no this on cuda:0, that is taken: OSError: no C compiler"]


def test_tables_are_kept_by_what_they_say():
    numbers, cpu = (3, 1, 2**40), torch.device("cpu")
    found = gpu.table(numbers, cpu)
    assert found.tolist() == [*numbers] and found.dtype == torch.int64
    assert gpu.table((3, 1, 2**40), cpu) is found
    assert gpu.table((3, 1, 2), cpu) is not found


def test_no_table_is_made_while_a_graph_is_captured(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(RuntimeError, match="a captured graph would copy a table"):
        gpu._copied(torch.ones(1), CARD)


def test_blocks_of_large_tensors_begin_beyond_32_bits():
    owner, begin = gpu.blocks((10, 3 * 2**31), 2**30, torch.device("cpu"))
    assert owner.tolist() == [0, *[1] * 6]
    assert begin.tolist() == [0, *(n * 2**30 for n in range(6))]


class Clock:
    """An event of a card: what was sent is there once it says so."""

    def __init__(self):
        self.calls, self.ready = [], False

    def record(self):
        self.calls.append("record")

    def query(self):
        return self.ready

    def synchronize(self):
        self.calls.append("synchronize")


def test_a_number_that_has_not_arrived_is_waited_for_and_no_other(monkeypatch):
    later, clock = gpu.Later(torch.device("cpu")), Clock()
    later.send_(torch.tensor(3.0))
    assert later.read() == 3
    monkeypatch.setattr(later, "_arrived", clock)
    later.send_(torch.tensor(4.0))
    assert later.read() == 4 and clock.calls == ["record", "synchronize"]
    clock.ready = True
    later.send_(torch.tensor(0.0))
    assert later.read() == 0 and clock.calls == ["record", "synchronize", "record"]
