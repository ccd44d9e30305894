"""Masks of one bit a weight, in Triton's interpreter: what is dropped becomes +0.0, what is kept
keeps its bits, wherever it lies.
"""

import itertools

import pytest
import torch
from torch import nn

import cubins
import interpreter
from secateurs.base import gpu
from secateurs.optim import FactorizedSGD, RigL, hold
from secateurs.optim import keep as keeps
from secateurs.optim.keep import Keep, clear_all_

if not interpreter.INTERPRETED:
    pytest.skip("in Triton's interpreter alone", allow_module_level=True)

from secateurs.optim import gpu_clear
from secateurs.optim.gpu_clear import MaskBits, clear_

VALUES = (float("nan"), float("inf"), -float("inf"), -0.0, -1e-30, 1e30, 5e-324, 0.0)
SHAPES = [(), (0,), (0, 3), (1,), (31,), (32,), (33,), (4096,), (4097,), (8, 3, 3, 3), (5, 4, 1, 1)]
DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn]
LAYOUTS = ["contiguous", "channels last", "turned"]


def laid(tensor, layout):
    if layout == "channels last" and tensor.ndim == 4:
        return tensor.contiguous(memory_format=torch.channels_last)
    if layout == "turned" and tensor.ndim > 1:
        backwards = [*reversed(range(tensor.ndim))]
        return tensor.permute(backwards).contiguous().permute(backwards)
    return tensor


def strange(shape, dtype, layout="contiguous"):
    count = torch.Size(shape).numel()
    values = torch.tensor(VALUES, dtype=torch.float64).repeat(count // 8 + 1)[:count]
    return laid(values.to(dtype).view(shape), layout)


def check(tensor, mask, clear):
    """Clear the tensor, and compare its bits with those that it had."""
    size = tensor.element_size()
    before = tensor.clone(memory_format=torch.contiguous_format).view(-1).view(torch.uint8).clone()
    clear()
    after = tensor.clone(memory_format=torch.contiguous_format).view(-1).view(torch.uint8)
    kept = mask.reshape(-1).repeat_interleave(size)
    assert torch.equal(after, before * kept)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("density", [0.0, 0.3, 1.0])
def test_what_is_dropped_is_plus_zero_and_what_is_kept_keeps_its_bits(density, dtype, layout):
    draw = torch.Generator().manual_seed(0)
    for shape in SHAPES:
        tensor, mask = strange(shape, dtype, layout), torch.rand(shape, generator=draw) < density
        assert MaskBits.takes(tensor)
        packed = MaskBits(mask, like=tensor)
        assert packed.fits(tensor) and torch.equal(packed.mask(), mask)
        assert packed.words.nbytes == 4 * -(-mask.numel() // 32)
        check(tensor, mask, lambda packed=packed, tensor=tensor: clear_([(packed, tensor)]))


def test_many_tensors_of_many_widths_at_once():
    draw = torch.Generator().manual_seed(0)
    pairs, before = [], []
    for shape, dtype in itertools.product(SHAPES, DTYPES):
        tensor, mask = strange(shape, dtype), torch.rand(shape, generator=draw) < 0.5
        pairs.append((MaskBits(mask, like=tensor), tensor))
        before.append(tensor.clone())
    clear_(pairs)
    for (packed, tensor), old in zip(pairs, before, strict=True):
        integers = keeps.INTEGERS[tensor.element_size()]
        assert torch.equal(tensor.view(integers), old.view(integers) * packed.mask())


class Watched:
    """A kernel, and the options that it was launched with."""

    def __init__(self, kernel):
        self.kernel, self.grids, self.options = kernel, [], []

    def __getitem__(self, grid):
        def launch(*args, **options):
            self.grids.append(grid)
            self.options.append(options)
            self.kernel[grid](*args, **options)

        return launch


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("begin", [0, 1])
def test_tensors_that_begin_anywhere_and_their_neighbours(dtype, begin, monkeypatch):
    watched = Watched(gpu_clear.clear_many_kernel)
    monkeypatch.setattr(gpu_clear, "clear_many_kernel", watched)
    room = torch.ones(5000, dtype=dtype)
    tensor, mask = room[begin : begin + 4990], torch.arange(4990) % 5 < 2
    check(tensor, mask, lambda: clear_([(MaskBits(mask, like=tensor), tensor)]))
    assert room[:begin].all() and room[begin + 4990 :].all()
    assert [options["ALIGNED"] for options in watched.options] == [begin == 0]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("begin", [0, 1])
def test_one_tensor_by_itself_as_a_captured_graph_takes_it(shape, begin):
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(0)) < 0.5
    tensor = (
        torch.empty(mask.numel() + begin)[begin:].view(shape).copy_(strange(shape, torch.float32))
    )
    check(tensor, mask, lambda: gpu_clear._clear_one_(MaskBits(mask, like=tensor), tensor))


def test_other_masks_take_the_same_memory():
    tensor = laid(torch.ones(4, 3, 2, 2), "channels last")
    first, second = torch.rand(2, 4, 3, 2, 2, generator=torch.Generator().manual_seed(0)) < 0.5
    packed = MaskBits(first, like=tensor)
    at = packed.words.data_ptr()
    packed.take_(second)
    assert packed.words.data_ptr() == at and torch.equal(packed.mask(), second)


def test_only_what_lies_alike_fits():
    tensor = torch.ones(4, 3, 2, 2)
    packed = MaskBits(tensor > 0, like=tensor)
    assert packed.fits(tensor.double()) and packed.fits(tensor.bfloat16())
    assert not packed.fits(laid(tensor, "channels last"))
    assert not packed.fits(tensor.to("meta")) and not packed.fits(tensor.to(torch.complex128))
    assert not MaskBits.takes(torch.ones(8, 3)[::2]) and not MaskBits.takes(torch.ones(1).expand(4))
    assert not MaskBits.takes(tensor.to(torch.complex128))
    narrow = torch.ones(4, 3, 1, 1)
    assert MaskBits(narrow > 0, like=narrow).fits(narrow.to(memory_format=torch.channels_last))


def test_autograd_is_told():
    tensor = torch.ones(40)
    clear_([(MaskBits(tensor > 0, like=tensor), tensor)])
    assert tensor._version == 1


# As `hold` takes it: CPU tensors in the place of those of a card.


@pytest.fixture
def card(monkeypatch):
    """A CPU that has this kernel."""
    monkeypatch.setattr(gpu, "has_kernels", lambda device: True)
    keeps.one_bit.cache_clear()
    yield
    keeps.one_bit.cache_clear()


def trained(with_kernel, monkeypatch, optimizer, changes=False):
    monkeypatch.setenv("SECATEURS_TRITON", "1" if with_kernel else "0")
    keeps.one_bit.cache_clear()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(24, 5))
    model = model.to(memory_format=torch.channels_last)
    draw = torch.Generator().manual_seed(0)
    masks = {n: torch.rand(p.shape, generator=draw) < 0.4 for n, p in model.named_parameters()}
    made = optimizer(model)
    held = hold(model, masks, made)
    x = torch.randn(8, 3, 4, 4, generator=draw)
    for number in range(6):
        if changes and number == 3:
            held.shrink(
                {
                    name: mask
                    & (torch.arange(mask.shape[0]) % 2 == 0).view(-1, *[1] * (mask.ndim - 1))
                    for name, mask in held.masks.items()
                }
            )
        made.zero_grad()
        model(x).square().mean().backward()
        made.step()
    assert all((keep._packed is not None) == with_kernel for keep in held._keeps.values())
    return model, made, held


OPTIMIZERS = {
    "sgd": lambda m: torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9),
    "adamw": lambda m: torch.optim.AdamW(m.parameters(), lr=0.01),
    "factorized": lambda m: FactorizedSGD(
        m.parameters(), lr=0.1, init="pretrained", zeros="frozen"
    ),
}


@pytest.mark.parametrize("changes", [False, True], ids=["", "shrunk"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_hold_is_the_same_by_bits(card, monkeypatch, name, changes):
    (one, ours, held), (other, theirs, _) = (
        trained(on, monkeypatch, OPTIMIZERS[name], changes) for on in (True, False)
    )
    for a, b in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)
        for key, value in ours.state[a].items():
            assert torch.equal(value, theirs.state[b][key]), key
    for name, mask in held.masks.items():
        assert not one.get_parameter(name)[~mask].any()
    # An eighth of a byte a weight, and nothing beside it.
    sizes = sum(
        k._packed.words.nbytes + sum(b.nbytes for b in k._bits) for k in held._keeps.values()
    )
    assert sizes == sum(4 * -(-p.numel() // 32) for p in one.parameters())


def test_a_step_launches_once_and_copies_nothing(card, monkeypatch):
    watched = Watched(gpu_clear.clear_many_kernel)
    monkeypatch.setattr(gpu_clear, "clear_many_kernel", watched)
    _model, optimizer, _held = trained(True, monkeypatch, OPTIMIZERS["adamw"])
    watched.grids.clear()
    for _ in range(2):
        before = gpu._table.cache_info().misses, gpu._blocks.cache_info().misses
        optimizer.step()
    # Weights, both moments and gradients after it.
    assert watched.grids == 2 * [(16, 1, 1)]
    assert (gpu._table.cache_info().misses, gpu._blocks.cache_info().misses) == before


def test_what_comes_to_lie_elsewhere_is_cleared_there(card):
    draw = torch.Generator().manual_seed(0)
    mask, room = torch.rand(4, 6, generator=draw) < 0.5, torch.empty(24)
    weight = nn.Parameter(torch.ones(4, 6))
    keep = keeps.Keep(mask, like=weight)
    clearing = keeps.Clearing([(keep, weight)])
    # Gradients that lie where the one before lay, but otherwise.
    kinds = [room.view(4, 6), room.view(6, 4).t(), room.view(4, 6), room[:12].view(torch.bfloat16)]
    for number, grad in enumerate(kinds):
        grad.fill_(2.0)
        with torch.no_grad():
            weight.fill_(1.0)
            if number == 2:
                weight.data = torch.full((4, 6), 3.0)
        clearing.clear_([(keep, grad.view(4, 6))] if grad.ndim == 1 else [(keep, grad)])
        assert torch.equal(grad.reshape(4, 6) != 0, mask), number
        assert torch.equal(weight != 0, mask), number
    # The weight where it lay, but otherwise, and of another dtype.
    at = weight.data
    for data in (at.view(6, 4).t(), at.flatten()[:12].view(torch.bfloat16).view(4, 6), at):
        weight.data = data
        with torch.no_grad():
            weight.fill_(1.0)
        clearing.clear_()
        assert torch.equal(weight != 0, mask)
    # Without a gradient, and with another mask in the same memory.
    keep.take_(~mask, like=weight, drops=True)
    weight.data.fill_(1.0)
    clearing.clear_()
    assert torch.equal(weight != 0, ~mask)


def test_every_stream_has_tables_of_its_own(card, monkeypatch):
    """What is freed on one may be written to on it at once."""
    weight = nn.Parameter(torch.ones(40))
    clearing = keeps.Clearing([(keeps.Keep(torch.arange(40) % 2 == 0, like=weight), weight)])
    seen = set()
    for stream in (1, 2, 1):
        monkeypatch.setattr(gpu, "stream", lambda _, stream=stream: stream)
        before = gpu._table.cache_info().misses
        clearing.clear_()
        assert (gpu._table.cache_info().misses > before) == (stream not in seen)
        seen.add(stream)


def test_rigl_changes_masks_of_bits(card):
    torch.manual_seed(0)
    model = nn.Linear(20, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    method = RigL(model, optimizer, sparsity=0.8, steps=100, every=2)
    before = method.masks["weight"].clone()
    for _ in range(6):
        model.weight.grad, model.bias.grad = torch.randn(10, 20), torch.zeros(10)
        optimizer.step()
    assert (method.masks["weight"] != before).any()
    assert not model.weight[~method.masks["weight"]].any()


def test_gradients_that_lie_otherwise_are_cleared_by_integers(card):
    weight = torch.ones(4, 6)
    mask = torch.rand(4, 6, generator=torch.Generator().manual_seed(0)) < 0.5
    keep, turned = Keep(mask, like=weight), torch.full((6, 4), float("nan")).t()
    clear_all_([(keep, weight), (keep, turned), (keep, weight.bfloat16())])
    assert torch.equal(weight, mask.float())
    assert torch.equal(turned.nan_to_num(1.0), mask.float())
    assert keep.alive(torch.ones(4, 6)) == int((~mask).sum())


def test_a_kernel_that_clears_something_else_is_refused(card, monkeypatch, caplog):
    monkeypatch.setattr(gpu_clear, "_pack", lambda flat: torch.zeros(3, dtype=torch.int32))
    assert keeps.one_bit(torch.device("cpu")) is None
    assert "has cleared something else" in caplog.text


def test_they_compile_for_cards_and_every_offset_has_64_bits():
    variants = [
        {"WIDTH": width, "ALIGNED": aligned, "BLOCK": gpu_clear.BLOCK}
        for width, aligned in (("int16", True), ("int32", True), ("int32", False), ("int64", True))
    ]
    tables = {"tensors": "*i64", "bits": "*i64", "counts": "*i64"}
    tables |= {"block_tensor": "*i32", "block_begin": "*i64"}
    found = cubins.texts_of(gpu_clear.__name__, "clear_many_kernel", tables, variants)
    one = {"tensor": "*i32", "words": "*i32"}
    for size in ({"n": "i64"}, {"n": "i32"}):
        found += cubins.texts_of(gpu_clear.__name__, "clear_one_kernel", one | size, variants[1:3])
    # Triton makes a constant of a single entry.
    single = [{"n": 1, **variants[1]}]
    found += cubins.texts_of(gpu_clear.__name__, "clear_one_kernel", one, single)
    assert len(found) == 9 * len(cubins.CARDS)
    for text in found:
        assert set(cubins.offsets_of(text)) == {"i64"}
