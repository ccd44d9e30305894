"""The selection for a GPU equals the streamed one bit for bit, in one part or in many; it runs on
any device.
"""

import pytest
import torch

from masks.grid import equal
from secateurs.masks import on_device, pieces
from secateurs.masks.topk import stream_largest_

DTYPES = [
    torch.bfloat16,
    torch.float32,
    *(pytest.param(dtype, marks=pytest.mark.slow) for dtype in (torch.float16, torch.float64)),
]
KINDS = ["normal", "rounded", "signs", "mostly zero", "denormal"]
SHAPES = {"a": (40, 70), "none": (0, 3), "b": (31, 3, 3, 3), "one": (1,), "c": (63,)}


PARTS = {"one part": 1 << 24, "many parts": 500, "a row": None, "a long row": None}


@pytest.fixture(params=PARTS)
def part(request, monkeypatch):
    if request.param == "a long row":
        monkeypatch.setattr(on_device, "MANY", 1)
        monkeypatch.setattr(pieces, "MANY", 1024)
    if PARTS[request.param] is None:
        return
    monkeypatch.setattr(on_device, "ROW", 0)
    monkeypatch.setattr(on_device, "PART", PARTS[request.param])
    batches = pieces.batches
    monkeypatch.setattr(
        on_device,
        "batches",
        lambda tensors, **options: batches(tensors, length=PARTS[request.param], **options),
    )


def grid(kind, dtype):
    g = torch.Generator().manual_seed(0)
    found = {}
    for name, shape in SHAPES.items():
        x = torch.randn(shape, generator=g, dtype=torch.float64)
        found[name] = {
            "normal": x,
            "rounded": (x * 5).round() / 5,
            "signs": x.sign(),
            "mostly zero": torch.where(x > 1, x, -0.0 * x.sign()),
            "denormal": x * torch.finfo(dtype).tiny / 100,
        }[kind].to(dtype)
    return found


def fences(scores, masked):
    g = torch.Generator().manual_seed(1)
    found = {n: torch.rand(s.shape, generator=g) < 0.4 for n, s in scores.items()}
    return {n: mask for n, mask in found.items() if masked and n not in ("a", "one")}


def rooms(scores, within):
    return {n: int(within[n].sum()) if n in within else s.numel() for n, s in scores.items()}


def empty(scores):
    return {name: torch.ones(score.shape, dtype=torch.bool) for name, score in scores.items()}


def streamed(scores, count, **options):
    masks = empty(scores)
    stream_largest_(masks, scores, count, **options)
    return masks


@pytest.mark.usefixtures("part")
@pytest.mark.parametrize("absolute", [False, True])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_one_threshold_for_all(kind, dtype, masked, absolute):
    scores = grid(kind, dtype)
    options = {"within": fences(scores, masked), "absolute": absolute}
    room = sum(rooms(scores, options["within"]).values())
    for count in (1, 2, 100, room // 2, room - 1, room):
        found = empty(scores)
        on_device.largest_(found, scores, count, **options)
        assert equal(found, streamed(scores, count, **options)), count


@pytest.mark.usefixtures("part")
@pytest.mark.parametrize("absolute", [False, True])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_threshold_for_each(kind, dtype, masked, absolute):
    scores = grid(kind, dtype)
    options = {"within": fences(scores, masked), "absolute": absolute}
    room = {name: size for name, size in rooms(scores, options["within"]).items() if size}
    for share in (0.01, 0.3, 0.9, 1):
        counts = {name: max(1, round(share * size)) for name, size in room.items()}
        given = {name: scores[name] for name in room}
        found = empty(given)
        on_device.largest_of_each_(found, given, counts, **options)
        for name, score in given.items():
            expected = streamed({name: score}, counts[name], **options)
            assert equal({name: found[name]}, expected), (name, share)


@pytest.mark.usefixtures("part")
def test_strided_scores_of_several_dtypes():
    g = torch.Generator().manual_seed(2)
    scores = {
        "a": torch.randn(40, 30, generator=g).half().T,
        "b": torch.randn(8, 4, 3, 3, generator=g).to(memory_format=torch.channels_last),
        "c": torch.randn(60, 2, generator=g).bfloat16()[:, 1],
    }
    for count in (7, 700):
        found = empty(scores)
        on_device.largest_(found, scores, count, within={})
        assert equal(found, streamed(scores, count, within={}))
