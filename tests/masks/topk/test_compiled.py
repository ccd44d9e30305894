"""The compiled selection equals the streamed one bit for bit, and what it does not take is
streamed.
"""

import ctypes
import logging

import pytest
import torch
from hypothesis import given as for_all
from hypothesis import strategies as st

from compilers import need
from masks.grid import equal
from secateurs.base import native
from secateurs.errors import ArgumentError
from secateurs.masks import select, topk
from secateurs.masks.topk import (
    CompiledSelection,
    cut_products_,
    largest,
    stream_largest_,
)

KERNEL = topk.kernel()  # built once per machine and kept
DTYPES = (torch.float32, torch.float64)
TINY = 5e-324


@pytest.fixture(autouse=True)
def compiled_everywhere(monkeypatch):
    need(KERNEL)
    monkeypatch.setattr(topk, "FEWEST", 0)


def streamed(scores, count, *, within=None, absolute=False):
    masks = {name: torch.zeros(score.shape, dtype=torch.bool) for name, score in scores.items()}
    stream_largest_(masks, scores, count, within=within or {}, absolute=absolute)
    return masks


def written(scores, count, *, within=None, absolute=False):
    """What the kernel wrote, into masks that held something else; None where it declined."""
    masks = {name: torch.ones(score.shape, dtype=torch.bool) for name, score in scores.items()}
    done = KERNEL.largest_(masks, scores, count, within=within or {}, absolute=absolute)
    return masks if done else None


def drawn(kind, size, dtype, seed=0):
    g = torch.Generator().manual_seed(seed)
    normal = torch.randn(size, generator=g, dtype=dtype)
    return {
        "normal": normal,
        "heavy": normal.abs() ** 8,
        "rounded": (normal * 500).round() / 500,
        "signs": normal.sign(),
        "sorted": normal.sort().values,
        "denormal": normal * torch.finfo(dtype).tiny / 100,
        "mostly zero": torch.where(normal > 1, normal, torch.tensor(-0.0, dtype=dtype)),
    }[kind]


KINDS = ("normal", "heavy", "rounded", "signs", "sorted", "denormal", "mostly zero")
SIZES = {
    "a": (100, 700),
    "none": (0, 3),
    "b": (331, 3, 3, 3),
    "one": (1,),
    "c": (63,),
    "d": (64,),
    "e": (65, 1000),
}


def grid(kind, dtype):
    return {
        name: (
            drawn(kind, shape, dtype, seed)
            if torch.Size(shape).numel()
            else torch.empty(shape, dtype=dtype)
        )
        for seed, (name, shape) in enumerate(SIZES.items())
    }


@pytest.mark.parametrize("absolute", [False, True])
@pytest.mark.parametrize("share", [None, 0.9, 0.3, 0.02])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_equals_the_streamed_selection(kind, dtype, share, absolute):
    scores, within = grid(kind, dtype), {}
    if share is not None:
        g = torch.Generator().manual_seed(9)
        within = {
            n: torch.rand(s.shape, generator=g) < share
            for n, s in scores.items()
            if n not in ("a", "one")
        }
        within["b"][5:] = False  # long stretches without anything allowed are skipped
    room = sum(int(within[n].sum()) if n in within else s.numel() for n, s in scores.items())
    for count in {1, 2, 100, room // 50, room // 2, room - 1, room}:
        expected = streamed(scores, count, within=within, absolute=absolute)
        assert equal(largest(scores, count, within=within, absolute=absolute), expected), count
        found = written(scores, count, within=within, absolute=absolute)
        assert equal(found, expected), count


@for_all(
    values=st.lists(
        st.sampled_from([-2.0, -0.0, 0.0, TINY, -TINY, 1e-45, 1e-30, 0.5, 0.5, 1.0, 1e30]),
        min_size=1,
        max_size=150,
    ),
    cut=st.integers(0, 150),
    part=st.floats(0, 1),
    hidden=st.integers(1, 7),
    dtype=st.sampled_from(DTYPES),
    absolute=st.booleans(),
)
def test_ties_signs_zeros_and_denormals(values, cut, part, hidden, dtype, absolute):
    tensor = torch.tensor(values, dtype=dtype)
    scores = {"a": tensor[:cut], "b": tensor[cut:]}
    within = {"b": torch.arange(len(scores["b"])) % hidden != 1}
    room = len(scores["a"]) + int(within["b"].sum())
    count = round(part * room)
    if count:
        expected = streamed(scores, count, within=within, absolute=absolute)
        assert equal(written(scores, count, within=within, absolute=absolute), expected)
    assert (
        sum(
            int(mask.sum())
            for mask in largest(scores, count, within=within, absolute=absolute).values()
        )
        == count
    )


@pytest.mark.parametrize("flush", [False, True])
def test_denormals_are_told_apart_even_while_torch_flushes_them(flush):
    scores = {"a": torch.tensor([1, 3, 2, 0], dtype=torch.int32).view(torch.float32)}
    try:
        torch.set_flush_denormal(flush)
        found = written(scores, 1)
    finally:
        torch.set_flush_denormal(False)
    assert found["a"].tolist() == [False, True, False, False]


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_do_not_change_a_bit(threads):
    scores = {
        "a": drawn("rounded", (900, 1000), torch.float32),
        "b": drawn("signs", (70_000,), torch.float32),
    }
    expected, before = streamed(scores, 300_000), torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        found = written(scores, 300_000)
    finally:
        torch.set_num_threads(before)
    assert equal(found, expected)


def test_more_ties_than_the_buffer_holds_are_streamed():
    scores, before = {"a": torch.ones(1_100_000)}, torch.get_num_threads()
    torch.set_num_threads(1)  # each thread has a buffer of its own
    try:
        assert written(scores, 500_000) is None
    finally:
        torch.set_num_threads(before)
    mask = largest(scores, 500_000)["a"]
    assert bool(mask[:500_000].all()) and not mask[500_000:].any()


def test_a_rank_beyond_the_entries_and_nan_are_declined():
    assert written({"a": torch.rand(9)}, 10) is None
    with pytest.raises(ArgumentError, match="rank 10 was requested among 9 entries"):
        largest({"a": torch.rand(9)}, 10)
    assert written({"a": torch.full((2000,), torch.nan)}, 1000) is None


def test_what_the_kernel_takes():
    score, mask = torch.zeros(4, 6), torch.zeros(4, 6, dtype=torch.bool)
    assert CompiledSelection.takes({"a": score, "b": score}, {"b": mask})
    assert not CompiledSelection.takes({"a": score, "b": score.double()}, {})
    assert not CompiledSelection.takes({"a": score.half()}, {})
    assert not CompiledSelection.takes({"a": score.t()}, {})
    assert not CompiledSelection.takes({"a": score}, {"a": mask.t().contiguous().t()})
    assert not CompiledSelection.takes({"a": score}, {"a": mask.int()})


@pytest.mark.parametrize(
    "layout",
    [lambda x: x.t().contiguous().t(), lambda x: x.half().float().to(torch.bfloat16)],
)
def test_other_layouts_and_dtypes_are_streamed(layout):
    scores = {
        "a": layout(drawn("normal", (50, 60), torch.float32)),
        "b": drawn("normal", (70,), torch.float32),
    }
    assert equal(largest(scores, 500), streamed(scores, 500))


def test_small_models_compile_nothing(monkeypatch):
    def forbidden():
        raise AssertionError("compiled for a small model")

    monkeypatch.setattr(topk, "FEWEST", 1 << 18)
    monkeypatch.setattr(topk, "kernel", forbidden)
    assert int(select({"a": torch.rand(100)}, density=0.3)["a"].sum()) == 30


def test_without_a_compiler_the_masks_are_the_same(monkeypatch, caplog):
    scores = grid("rounded", torch.float32)
    expected = select(scores, density=0.3)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CXX", raising=False)
    topk.kernel.cache_clear()
    with caplog.at_level(logging.WARNING, logger="secateurs.masks"):
        found = [select(scores, density=0.3) for _ in range(2)]
    topk.kernel.cache_clear()
    assert equal(found[0], expected) and equal(found[1], expected)
    assert [r.getMessage() for r in caplog.records] == [
        "no compiled selection, masks are selected by the pure-torch path: no C++ compiler found"
        " (set CXX)"
    ]


def test_it_can_be_switched_off(monkeypatch):
    monkeypatch.setenv("SECATEURS_NATIVE", "0")
    topk.kernel.cache_clear()
    assert topk.kernel() is None
    topk.kernel.cache_clear()


def test_a_wrong_binary_is_refused(monkeypatch):
    monkeypatch.setattr(CompiledSelection, "largest_", lambda *_, **__: True)
    with pytest.raises(RuntimeError, match="disagrees with the reference"):
        topk._load_and_try(topk.ctypes.CDLL(str(topk.native.build(topk.SOURCE))))


def test_a_build_for_any_processor_chooses_the_same(monkeypatch, tmp_path):
    """Without the vector instructions of this machine the flags are found by plain loops."""
    monkeypatch.setattr(native, "_ATTEMPTS", (("-fopenmp",), ()))
    plain = CompiledSelection(ctypes.CDLL(str(native.build(topk.SOURCE, tmp_path))))
    for kind in KINDS:
        for dtype in DTYPES:
            scores = grid(kind, dtype)
            within = {"a": torch.arange(70_000).reshape(100, 700) % 3 > 0}
            for absolute in (False, True):
                masks = {n: torch.ones_like(s).bool() for n, s in scores.items()}
                given = {"within": within, "absolute": absolute}
                if plain.largest_(masks, scores, 40_000, **given):
                    assert equal(masks, streamed(scores, 40_000, **given)), kind


def test_a_wrong_count_of_what_is_allowed_changes_no_mask():
    """It only places the bracket; what misses the rank is told."""
    scores = grid("normal", torch.float32)
    expected = streamed(scores, 5000)
    for room in (5000, 60_000, 10**9):
        masks = {n: torch.ones_like(s).bool() for n, s in scores.items()}
        if KERNEL.largest_(masks, scores, 5000, within={}, room=room):
            assert equal(masks, expected)


def check_products(factors, weights, count, within, cut):
    """The masks of |factor ⊙ weight|, the weights cut by them, and the counts; whether it ran."""
    products = {n: (f * weights[n]).abs() for n, f in factors.items()}
    expected = streamed(products, count, within=within)
    room = sum(int(within[n].sum()) if n in within else f.numel() for n, f in factors.items())
    left = {n: w.clone() for n, w in weights.items()}
    found = cut(factors, left, count, within=within, room=room)
    if found is None:
        return False
    masks, kept = found
    assert equal(masks, expected)
    assert kept == {n: int(mask.sum()) for n, mask in expected.items()}
    for name, mask in expected.items():
        gone = ~mask & within.get(name, torch.ones_like(mask))
        assert torch.equal(left[name], weights[name].masked_fill(gone, 0.0))
    return True


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["normal", "heavy", "rounded", "sorted", "denormal"])
def test_products_are_chosen_and_weights_cut(kind, dtype, threads):
    factors, weights = grid(kind, dtype), {n: 1 + w for n, w in grid("normal", dtype).items()}
    within = {"a": torch.arange(70_000).reshape(100, 700) % 3 > 0}
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        if kind == "denormal" and not (torch.full((1 << 20,), 1e-40) * 1.0).all():
            # Threads take over the setting of the one that starts them, and keep it.
            pytest.skip("an earlier test has started threads that flush denormal numbers")
        done = [
            check_products(factors, weights, count, allowed, cut_products_)
            for count in (1, 7, 5000, 40_000)
            for allowed in ({}, within)
        ]
    finally:
        torch.set_num_threads(before)
    assert all(done)


def test_products_on_any_processor(monkeypatch, tmp_path):
    monkeypatch.setattr(native, "_ATTEMPTS", (("-fopenmp",), ()))
    plain = CompiledSelection(ctypes.CDLL(str(native.build(topk.SOURCE, tmp_path))))
    monkeypatch.setattr(topk, "kernel", lambda: plain)
    for dtype in DTYPES:
        factors, weights = grid("normal", dtype), grid("heavy", dtype)
        within = {"a": torch.arange(70_000).reshape(100, 700) % 3 > 0}
        assert check_products(factors, weights, 40_000, within, cut_products_)
        weights["a"][3, 3] = torch.nan
        assert cut_products_(factors, weights, 40_000, within={}, room=10**6) is None


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("place", [0, 69_999])
def test_a_product_that_is_not_finite_is_told(place, dtype, bad):
    """Even where nothing may be kept."""
    factors, weights = grid("normal", dtype), grid("heavy", dtype)
    within = {"a": torch.ones(100, 700, dtype=torch.bool)}
    within["a"].view(-1)[place] = False
    factors["a"].view(-1)[place] = bad
    weights["a"].view(-1)[place] = 1.0
    room = sum(f.numel() for f in factors.values()) - 1
    assert cut_products_(factors, weights, 5000, within=within, room=room) is None


def test_products_that_torch_would_flush_to_zero_are_left_to_torch():
    factors, weights = grid("normal", torch.float32), grid("heavy", torch.float32)
    room = sum(f.numel() for f in factors.values())
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush denormals")
    try:
        assert cut_products_(factors, weights, 5000, within={}, room=room) is None
    finally:
        torch.set_flush_denormal(False)
    assert cut_products_(factors, weights, 5000, within={}, room=room) is not None


def test_products_of_other_tensors_are_refused():
    factors, weights = grid("normal", torch.float32), grid("heavy", torch.float32)
    turned = {**weights, "a": weights["a"].t().contiguous().t()}
    other = {**weights, "a": weights["a"].double()}
    fewer = {"a": weights["a"]}
    for strange in (turned, other, fewer):
        assert cut_products_(factors, strange, 5, within={}, room=10**6) is None
