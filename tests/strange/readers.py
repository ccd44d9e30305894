"""Public functions that only look: whatever they answer, the network is as it was."""

import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

import secateurs as sc
from invariance import check_invariance
from strange.answers import Outcome, untouched
from strange.kinds import forget
from strange.networks import Case


def _loss(y: object, target: torch.Tensor) -> torch.Tensor:
    return y.sum()


def _batch(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x, torch.zeros(len(x), dtype=torch.long)


def _exported(suffix: str) -> Callable[[nn.Module, torch.Tensor], object]:
    def call(model: nn.Module, x: torch.Tensor) -> object:
        with tempfile.TemporaryDirectory() as folder:
            return sc.export(model, Path(folder, f"net{suffix}"), x)

    return call


def _saved(model: nn.Module, x: torch.Tensor) -> object:
    with tempfile.TemporaryDirectory() as folder:
        return sc.save_sparse(model, Path(folder, "net.sparse"))


def _invariant(model: nn.Module, x: torch.Tensor) -> object:
    g = torch.Generator().manual_seed(0)
    return check_invariance(model, "magnitude", x, generator=g)


READERS: dict[str, Callable[[nn.Module, torch.Tensor], object]] = {
    "capture": sc.capture,
    "log2_path_norm": sc.log2_path_norm,
    "path_norm_penalty": sc.path_norm_penalty,
    "path_costs": sc.path_costs,
    "path_metric": lambda m, x: sc.path_metric(m, m, x),
    "lifting": sc.paths.lifting,
    "liveness": sc.liveness,
    "lipschitz_bounds": lambda m, x: sc.lipschitz_bounds(m, m, x),
    "score by magnitude": lambda m, x: sc.score(m, "magnitude"),
    "score by synflow": lambda m, x: sc.score(m, "synflow", batch=_batch(x)),
    "score by snip": lambda m, x: sc.score(m, "snip", batch=_batch(x), loss=_loss),
    "check_invariance": _invariant,
    "save_sparse": _saved,
    "sparsity": lambda m, x: sc.sparsity_report(m),
    "diagnose": lambda m, x: sc.diagnose(m),
    "export to pt2": _exported(".pt2"),
    "export to C": _exported(".c"),
    "export to ONNX": _exported(".onnx"),
    "statistical": lambda m, x: sc.proof.statistical(m, m, data=torch.cat([x] * 30)),
}


def seen(name: str, case: Case) -> Outcome:
    """Whether a function that only looks changed something; a raw error counts too."""
    forget()
    model = case.fresh()
    try:
        with untouched(case, model):
            READERS[name](model, case.inputs(2))
    except sc.errors.SecateursError as error:
        return Outcome(refused=f"{type(error).__name__}: {error}")
    except Exception as error:
        text = f"{type(error).__name__}: {str(error)[:600]}"
        return Outcome(wrong=[f"neither an answer nor a refusal: {text}"])
    return Outcome()
