"""The rule for equal scores, as one law over every choice: equal scores are ranked as if each
were a little larger than those after it.
"""

import pytest
import torch
from safetensors.torch import load_file, save_file

from masks.grid import LAYOUTS, PATTERN_NAMES, equal, laid_out, oracle
from secateurs.llm import prune_file
from secateurs.masks import SCOPES, select
from secateurs.masks.draw import winners

SHAPES = {"b": (8, 8, 2, 2), "a": (4, 8, 2, 2), "c": (12, 4, 1, 3)}  # not in the order of names
DENSITIES = (0.2, 0.3, 0.5)
WAYS = [
    (scope, pattern)
    for scope in SCOPES.names()
    for pattern in PATTERN_NAMES
    if scope != "row" or pattern == "unstructured"
]
# A file is read in pieces: these scopes look at all of it at once, and are refused.
STORED = [(s, pattern) for s, pattern in WAYS if s not in ("spectral", "proportional")]


def tied(dtype=torch.float64):
    """Small whole numbers: nearly every score has equals, and so do the means of groups."""
    g = torch.Generator().manual_seed(3)
    return {
        name: torch.randint(1, 4, shape, generator=g).to(dtype) for name, shape in SHAPES.items()
    }


def told_apart(scores):
    """The same scores, each larger than its equals after it, by far less than the others differ."""
    found, first = {}, 0
    for name, score in scores.items():
        places = torch.arange(first, first + score.numel(), dtype=torch.float64)
        found[name] = score.double() - 1e-9 * places.view(score.shape)
        first += score.numel()
    return found


def chosen(scores, scope, pattern, density):
    weights = {name: score + 1 for name, score in tied().items()}
    return select(scores, density=density, scope=scope, pattern=pattern, weights=weights)


@pytest.mark.parametrize("density", DENSITIES)
@pytest.mark.parametrize(("scope", "pattern"), WAYS)
def test_in_memory(scope, pattern, density):
    expected = chosen(told_apart(tied()), scope, pattern, density)
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        assert equal(chosen(tied(dtype), scope, pattern, density), expected), dtype
    for layout in LAYOUTS:
        assert equal(chosen(laid_out(tied(), layout), scope, pattern, density), expected), layout


@pytest.mark.parametrize("density", DENSITIES)
@pytest.mark.parametrize(("scope", "pattern"), STORED)
def test_on_disk(tmp_path, scope, pattern, density):
    file, out = tmp_path / "m.safetensors", tmp_path / "out.safetensors"
    for dtype in (torch.float32, torch.bfloat16):
        save_file(tied(dtype), file)
        # The order of a file is its own.
        scores = {name: tied()[name] for name in load_file(file)}
        expected = chosen(told_apart(scores), scope, pattern, density)
        prune_file(file, out, density=density, scope=scope, pattern=pattern, where=["*"])
        found = {name: tensor != 0 for name, tensor in load_file(out).items()}
        assert equal(found, expected), dtype


@pytest.mark.parametrize("count", [1, 7, 20, 39])
def test_the_winners_of_a_draw(count):
    keys = torch.randint(0, 4, (1, 40), generator=torch.Generator().manual_seed(1)).double()
    expected = oracle({"": keys}, count)[""]
    for rows in (1, 3):  # one row is streamed, several are sorted
        mask, _ = winners(keys.expand(rows, -1), torch.full((rows,), count), None)
        assert torch.equal(mask, expected.expand(rows, -1)), rows
