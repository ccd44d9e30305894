"""Every function that rewrites a model, on networks with random ties, dead channels and outputs."""

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

import secateurs as sc
from attack.cases import Tally
from proof.scaling.test_verify import WIDTH, Net
from secateurs.errors import SecateursError
from secateurs.proof import normalize_, remove_dead_, rescale_random_
from ship.random_nets import random_net

Rewrite = Callable[[nn.Module, Tensor], nn.Module]


def _in_place(function: Callable[..., object]) -> Rewrite:
    def rewrite(model: nn.Module, x: Tensor) -> nn.Module:
        function(model, x)
        return model

    return rewrite


def _rescaled(model: nn.Module, x: Tensor) -> None:
    rescale_random_(model, x, generator=torch.Generator().manual_seed(0))


def _pruned(model: nn.Module, x: Tensor) -> nn.Module:
    """Masked, then compacted: compaction is what must not change the masked model."""
    sc.prune_channels_(model, x, density=0.6)
    return model


REWRITES: dict[str, Rewrite] = {
    "normalize_": _in_place(normalize_),
    "remove_dead_": _in_place(remove_dead_),
    "rescale_random_": _in_place(_rescaled),
    "compact": lambda model, x: sc.compact(model, x),
    "prune_channels_, then compact": lambda model, x: sc.compact(model, x),
}


def tie(model: nn.Module, g: torch.Generator) -> int:
    """Make some parameters of one shape one parameter; how many."""
    slots: dict[tuple[int, ...], list[tuple[nn.Module, str]]] = {}
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            slots.setdefault(tuple(parameter.shape), []).append((module, name))
    tied = 0
    for places in slots.values():
        for module, name in places[1:]:
            if float(torch.rand((), generator=g)) < 0.2:
                setattr(module, name, getattr(*places[0]))
                tied += 1
    return tied


def attack_rewrite(name: str, seed: int) -> Tally:
    """The function before and after, in float64; a refusal must leave every tensor as it was."""
    tally = Tally()
    g = torch.Generator().manual_seed(seed)
    if seed % 2:
        model, x = Net(g).double().eval(), torch.zeros(1, WIDTH, dtype=torch.float64)
        inputs = torch.randn(32, WIDTH, generator=g, dtype=torch.float64)
    else:
        model, x, _ = random_net(seed // 2)
        inputs = torch.randn(8, *x.shape[1:], generator=g, dtype=torch.float64)
        tally.counts["tied tensors"] += tie(model, g)
    if name.startswith("prune_channels_"):
        try:
            _pruned(model, x[:1])
        except SecateursError as error:
            tally.counts[f"{name}: refused ({type(error).__name__})"] += 1
            return tally
    with torch.no_grad():
        before = copy.deepcopy(model)(inputs)
    saved = {k: v.clone() for k, v in model.state_dict().items()}
    try:
        after = REWRITES[name](model, x[:1])
    except SecateursError as error:
        tally.counts[f"{name}: refused ({type(error).__name__})"] += 1
        if any(not torch.equal(v, saved[k]) for k, v in model.state_dict().items()):
            tally.violations.append(f"{name} seed {seed}: refused, but changed the model")
        return tally
    with torch.no_grad():
        gap = float((after(inputs) - before).abs().max())
    scale = float(before.abs().max()) + 1e-12
    tally.counts[f"{name}: kept its function"] += 1
    if not gap <= 1e-9 * scale:
        tally.violations.append(f"{name} seed {seed}: moved by {gap / scale:.3g}")
    return tally
