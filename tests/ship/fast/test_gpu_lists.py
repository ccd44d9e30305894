"""Products by lists, in Triton's interpreter: those of the dense matrix; and layers that run by
them, CPU tensors in the place of those of a card.
"""

import itertools

import pytest
import torch
from torch import nn

import cubins
import interpreter
import secateurs as sc
from secateurs.base import gpu
from secateurs.errors import ShipError
from secateurs.ship.fast import layers

if not interpreter.INTERPRETED:
    pytest.skip("in Triton's interpreter alone", allow_module_level=True)

from secateurs.base import gpu_launch
from secateurs.ship.fast import gpu_lists
from secateurs.ship.fast.gpu_lists import Listed, product

SHAPES = [(1, 1), (3, 31), (5, 256), (4, 257), (2, 700), (7, 3000)]
GAPS = {torch.float16: 2e-3, torch.bfloat16: 2e-2, torch.float32: 1e-5}


def scattered(shape, dtype, density, seed=0):
    draw = torch.Generator().manual_seed(seed)
    kept = torch.rand(shape, generator=draw) < density
    return (torch.randn(shape, generator=draw) * kept).to(dtype)


def back(listed, rows):
    """The matrix, read from its lists as slowly and plainly as can be."""
    made = torch.zeros(rows, listed.columns, dtype=listed.values.dtype)
    size = 32 * listed.each
    for row in range(rows):
        for tile in range(int(listed.starts[row]), int(listed.starts[row + 1])):
            for lane, slot in itertools.product(range(32), range(listed.each)):
                at = tile * size + lane * listed.each + slot
                group = at
                if listed.group > 1:
                    group = (tile * listed.each + slot) * (32 // listed.group)
                    group += lane // listed.group
                column = int(listed.bases[group]) & 0xFFFF
                column += int(listed.offsets[at]) if listed.group > 1 else 0
                if listed.values[at]:
                    made[row, column] += listed.values[at]
    return made


@pytest.mark.parametrize("each", [4, 8])
@pytest.mark.parametrize("density", [0.0, 0.003, 0.03, 0.1, 0.5, 1.0])
def test_a_matrix_comes_back_from_its_lists(density, each):
    for shape in SHAPES:
        matrix = scattered(shape, torch.float32, density)
        listed = Listed.of(matrix, each)
        assert torch.equal(back(listed, shape[0]), matrix)


@pytest.mark.parametrize("gap", [255, 256, 257, 65535])
def test_columns_far_from_each_other(gap):
    matrix = torch.zeros(2, 65536)
    matrix[0, [0, gap]], matrix[1, [3, 9]] = 1.0, 2.0
    listed = Listed.of(matrix)
    assert (listed.group == 32) == (gap < 256)
    assert torch.equal(back(listed, 2), matrix)


def test_groups_are_as_large_as_their_columns_allow():
    found = [
        Listed.of(scattered((4, 4096), torch.float32, d)).group for d in (0.5, 0.14, 0.1, 0.01)
    ]
    assert found == sorted(found, reverse=True) and found[0] == 32 and found[-1] == 1


@pytest.mark.parametrize("bias", [False, True], ids=["", "bias"])
@pytest.mark.parametrize("batch", [1, 2, 3, 4])
@pytest.mark.parametrize("dtype", GAPS, ids=str)
def test_it_is_the_dense_product(dtype, batch, bias):
    for shape, density in itertools.product(SHAPES, (0.0, 0.02, 0.1, 0.5, 1.0)):
        matrix, x = scattered(shape, dtype, density), scattered((batch, shape[1]), dtype, 1.0, 1)
        own = scattered(shape[:1], dtype, 1.0, 2) if bias else None
        found = product(Listed.of(matrix), x, own)
        wanted = nn.functional.linear(
            x.double(), matrix.double(), None if own is None else own.double()
        )
        assert found.dtype == dtype
        gap = float((found.double() - wanted).abs().max())
        assert gap <= GAPS[dtype] * max(1.0, float(wanted.abs().max())), (shape, density)


def test_inputs_with_gaps_in_memory():
    matrix, x = scattered((3, 40), torch.float32, 0.5), torch.randn(80, 2).t()[:, ::2]
    torch.testing.assert_close(product(Listed.of(matrix), x), x @ matrix.t())


class Kept:
    """What Triton has compiled, which the interpreter has not: it launches as the kernel does."""

    def __init__(self, takes_constants):
        self.takes_constants, self.launched = takes_constants, 0

    def __getitem__(self, grid):
        def launch(*given):
            if not self.takes_constants:
                raise TypeError("function takes exactly 18 arguments (23 given)")
            self.launched += 1
            names = ("B", "EACH", "GROUP", "UNROLL", "BIAS")
            plain[grid](*given[:9], **dict(zip(names, given[9:], strict=True)), num_warps=1)

        plain = self.plain
        return launch


@pytest.mark.parametrize("takes", [True, False], ids=["constants", "none"])
@pytest.mark.parametrize("bias", [False, True], ids=["", "bias"])
def test_what_is_compiled_is_launched_again(monkeypatch, takes, bias):
    kept, launched = Kept(takes), []
    kept.plain = gpu_lists.listed_kernel

    class Kernel:
        def __getitem__(self, grid):
            def launch(*given, **named):
                launched.append(grid)
                kept.plain[grid](*given, **named)
                return kept

            return launch

    monkeypatch.setattr(gpu_lists, "listed_kernel", Kernel())
    monkeypatch.setattr(gpu_launch, "CompiledKernel", Kept)
    matrix = scattered((5, 700), torch.float32, 0.3)
    own = torch.randn(5) if bias else None
    by_lists = gpu_lists.Product(Listed.of(matrix), own)
    # Two inputs and three, and one that begins elsewhere, have kernels of their own.
    inputs = [torch.randn(n, 700) for n in (2, 2, 3, 3)] + [torch.randn(2, 701).view(-1)[1:1401]]
    for number, x in enumerate(inputs):
        x = x.view(-1, 700)
        found = by_lists(x)
        torch.testing.assert_close(found, nn.functional.linear(x, matrix, own), msg=str(number))
    assert len(launched) == (3 if takes else 5)
    assert kept.launched == (2 if takes else 0)


def test_columns_beyond_16_bits_are_refused():
    with pytest.raises(ShipError, match="65537 columns and 256 places of values: lists take"):
        Listed.of(torch.ones(1, 1).expand(1, 65537) * (torch.arange(65537) == 65536))
    assert Listed.of((torch.arange(65536) == 65535).float()[None]).bases[0] == -1


# As `accelerate` takes it.


@pytest.fixture
def card(monkeypatch):
    """A CPU that is taken for a card with Triton."""
    monkeypatch.setattr(gpu, "has_kernels", lambda device: True)
    monkeypatch.setattr("secateurs.ship.fast.accelerated.on_gpu", lambda _: True)
    monkeypatch.setattr(layers, "pack_2_4", lambda weight: weight)
    layers.lists.cache_clear()
    yield monkeypatch
    layers.lists.cache_clear()


def network(**asked):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64, bias=False)).eval()
    sc.prune_(model, "magnitude", **(asked or {"sparsity": 0.8}))
    return model.bfloat16()


def _whole(forms, _):
    """A network with compiled layers is twice as fast."""
    return {n: {name: 0.5 if name == "layers" else 1.0 for name in forms} for n in (1, 2)}


def times(monkeypatch, found):
    """What timings say: seconds in torch (or beside it) and of a way, by its name and samples."""
    asked = []

    def timed(beside, call, dims, like, samples):
        way = "lists" if max(samples) == gpu_lists.MOST else "2:4"
        asked.append((way, isinstance(beside, nn.Module)))
        return found[way]

    monkeypatch.setattr(layers, "_time", timed)
    monkeypatch.setattr("secateurs.ship.fast.accelerated._time_forms", _whole)
    return asked


def counted(monkeypatch):
    """The numbers of samples that run by lists."""
    seen, plain = [], gpu_lists.Product.__call__
    monkeypatch.setattr(
        gpu_lists.Product, "__call__", lambda self, x: (seen.append(len(x)), plain(self, x))[1]
    )
    return seen


GAINS = {1: (2.0, 1.0), 2: (2.0, 1.0), 3: (1.0, 1.0), 4: (1.0, 2.0)}


def test_scattered_zeros_run_by_lists_for_few_inputs(card):
    model, asked, seen = network(), times(card, {"lists": GAINS}), counted(card)
    made = sc.accelerate(model, torch.randn(5, 64).bfloat16())
    assert asked == [("lists", True)] * 2
    assert [layer.ways[0].partition(";")[0] for layer in made.report.layers] == ["lists"] * 2
    assert "2.00× for 1, 2.00× for 2, 1.00× for 3, 0.50× for 4" in str(made.report.layers)
    seen.clear()
    with torch.inference_mode():
        for shape in ((1,), (2,), (3,), (4,), (5,), (1, 2), (2, 3), (0,)):
            x = torch.randn(*shape, 64).bfloat16()
            found, wanted = made(x), model(x)
            assert found.shape == wanted.shape
            torch.testing.assert_close(found, wanted, rtol=0.05, atol=0.02)
    assert seen == [1, 1, 2, 2, 2, 2]
    # Gradients are not for this kernel, and other dtypes are refused as by any layer.
    assert made(torch.randn(1, 64).bfloat16().requires_grad_()).requires_grad
    with pytest.raises(RuntimeError, match="dtype"):
        made(torch.randn(1, 64))


def test_guessed_they_take_as_many_as_they_can(card):
    model, seen = network(), counted(card)
    made = sc.accelerate(model, torch.randn(1, 64).bfloat16(), tune="guess", keep="always")
    seen.clear()
    with torch.inference_mode():
        for rows in (1, 4, 5):
            made(torch.randn(rows, 64).bfloat16())
    assert seen == [1, 1, 4, 4]


@pytest.mark.parametrize(
    ("lists", "packed", "ways"),
    [
        # samples by lists, samples by 2:4, of 1, 2, 4, 16
        (GAINS, {1: (2.0, 1.0), 16: (2.0, 1.0)}, ([1, 2], [4, 16])),
        (GAINS, {1: (1.0, 2.0), 16: (2.0, 1.0)}, ([1, 2], [16])),
        (dict.fromkeys((1, 2, 3, 4), (2.0, 1.0)), {1: (2.0, 1.0)}, ([1, 2, 4], [16])),
        (dict.fromkeys((1, 2, 3, 4), (1.0, 2.0)), {1: (2.0, 1.0)}, ([], [1, 2, 4, 16])),
        (GAINS, {1: (1.0, 2.0), 16: (1.0, 2.0)}, ([1, 2], [])),
    ],
)
def test_beside_2_4_each_runs_where_it_is_the_fastest(card, lists, packed, ways):
    model, asked = network(pattern="2:4"), times(card, {"lists": lists, "2:4": packed})
    seen = counted(card)
    made = sc.accelerate(model, torch.randn(32, 64).bfloat16())
    gains = any(ours < theirs for theirs, ours in packed.values())
    # Lists are timed beside what is the fastest without them.
    assert asked == [("2:4", True), ("lists", not gains)] * 2
    dense, by_packed, plain = [], [], nn.Linear.forward
    card.setattr(nn.Linear, "forward", lambda own, x: (dense.append(len(x)), plain(own, x))[1])
    seen.clear()
    with torch.inference_mode():
        for rows in (1, 2, 4, 16):
            x = torch.randn(rows, 64).bfloat16()
            before = len(dense) + len(seen)
            found = made[0](x)
            by_packed += [] if len(dense) + len(seen) > before else [rows]
            torch.testing.assert_close(found, plain(model[0], x), rtol=0.05, atol=0.02)
    assert (seen, by_packed) == ways


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_only_half_precision_runs_by_lists(card, dtype, caplog):
    made = sc.accelerate(network().to(dtype), torch.randn(1, 64).to(dtype))
    assert type(made[0]) is nn.Linear
    assert "half precision" in caplog.text and "by lists" not in caplog.text


def test_a_layer_that_gains_by_neither_says_so(card, caplog):
    times(card, {"lists": dict.fromkeys((1, 2, 3, 4), (1.0, 2.0))})
    assert type(sc.accelerate(network(), torch.randn(1, 64).bfloat16())[0]) is nn.Linear
    assert "its zeros are not 2:4" in caplog.text
    assert "by lists: no gain (0.50× for 1" in caplog.text


def test_a_kernel_that_computes_something_else_is_refused(card, caplog):
    card.setattr(gpu_lists.Product, "__call__", lambda self, x: torch.zeros(2, 5))
    assert layers.lists(torch.device("cpu")) is None
    assert "the product by lists disagrees with the dense one" in caplog.text


def test_it_compiles_for_cards():
    variants = [
        {"B": batch, "EACH": 8, "GROUP": group, "UNROLL": 2, "BIAS": bias}
        for batch, group, bias in ((1, 32, True), (2, 16, False), (3, 8, True), (4, 1, True))
    ]
    for kind in ("fp16", "bf16"):
        signature = {"values": f"*{kind}", "offsets": "*u8", "bases": "*i16", "starts": "*i32"}
        signature |= {"x": f"*{kind}", "bias": f"*{kind}", "y": f"*{kind}", "N": "i32", "K": "i32"}
        found = cubins.texts_of(gpu_lists.__name__, "listed_kernel", signature, variants)
        assert len(found) == len(variants) * len(cubins.CARDS)
