"""|gradient ⊙ weight| in one compiled pass equals two passes of torch, bit for bit."""

import pytest
import torch
from torch import Tensor, nn

import secateurs as sc
from compilers import need
from secateurs.scores.rules import product
from secateurs.scores.rules.product import absolute_product
from secateurs.scores.scorer import separate_copies

KERNEL = product.kernel()


@pytest.fixture(autouse=True)
def compiled_everywhere(monkeypatch):
    need(KERNEL)
    monkeypatch.setattr(product, "FEWEST", 0)


def drawn(kind: str, size: int, dtype: torch.dtype) -> Tensor:
    gradient = torch.rand(size, generator=torch.Generator().manual_seed(size), dtype=dtype)
    special = {"negative": -0.5, "nan": torch.nan, "infinite": -torch.inf}
    if size and kind in special:
        gradient[size // 2] = special[kind]
    if kind == "zeros":
        gradient[::2] = -0.0
    return gradient * torch.finfo(dtype).tiny if kind == "denormal" else gradient


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [0, 1, 17, 140_003])
@pytest.mark.parametrize("kind", ["positive", "negative", "nan", "infinite", "zeros", "denormal"])
def test_equals_the_passes_of_torch(kind, size, dtype, threads, monkeypatch):
    weight = torch.rand(size, dtype=dtype) + 0.1
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        ours = absolute_product(drawn(kind, size, dtype), weight)
        monkeypatch.setattr(product, "kernel", lambda: None)
        theirs = absolute_product(drawn(kind, size, dtype), weight)
    finally:
        torch.set_num_threads(before)
    if kind in ("nan", "infinite") and size:
        assert ours is None and theirs is None
        return
    bits = torch.int32 if dtype == torch.float32 else torch.int64
    assert torch.equal(ours.view(bits), theirs.view(bits))
    assert torch.equal(ours, (drawn(kind, size, dtype) * weight).abs())


def test_a_product_that_overflows_is_no_score():
    assert absolute_product(torch.full((9,), 3e38), torch.full((9,), 2.0)) is None


@pytest.mark.parametrize(
    "turned",
    [
        lambda x: x.t().contiguous().t(),
        lambda x: x[0].expand(6, 5),
        lambda x: x.bfloat16(),
    ],
)
def test_other_layouts_are_multiplied_by_torch(turned):
    gradient, weight = turned(torch.rand(6, 5)), torch.rand(6, 5)
    expected = gradient * weight.to(gradient.dtype)
    (apart,) = separate_copies([gradient])
    assert torch.equal(absolute_product(apart, weight.to(gradient.dtype)), expected)


class Sum(nn.Module):
    """Autograd gives both terms one and the same gradient, and the offset one number."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.offset = (nn.Parameter(torch.rand(3, 4)) for _ in "abc")

    def forward(self, x: Tensor) -> Tensor:
        return (x @ (self.a + self.b).t()).sum() + self.offset


def test_terms_of_a_sum_are_scored_apart():
    net = Sum()
    scores = sc.score(net, "synflow", where=["a", "b", "offset"], example=torch.zeros(2, 4))
    # R = Σ_ij (2 Σ_k (a + b)_jk + …), each entry counted for both rows, and 12 outputs.
    for name in ("a", "b"):
        expected = 24 * getattr(net, name).detach()
        assert torch.allclose(scores[name], expected), name
    assert torch.allclose(scores["offset"], net.offset.detach())
