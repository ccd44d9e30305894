"""Methods that act at every step of an existing optimizer, through its hooks, until they are
released.

And what sparse training costs.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import nn
from torch.optim import LBFGS, Optimizer

from secateurs.base.parameters import Params, check_model
from secateurs.base.parametrized import parts_of_weights
from secateurs.base.prunable import Where, prunable
from secateurs.errors import ArgumentError, ParameterError, TrainingError
from secateurs.masks.pieces import count_each
from secateurs.optim.holding import family, trained_by, unwrap_optimizer

if TYPE_CHECKING:
    from secateurs.graph import Example


class StepMethod:
    """A method of training that acts before and after each step of an optimizer.

    The model and the optimizer stay what they are. The method's own state travels in the
    optimizer's `state_dict()`, under `key` of the first group, and comes back with
    `load_state_dict()`, or with torch.distributed.checkpoint: once the
    method is made anew, a checkpoint of model and optimizer resumes bit for bit. Copies of the
    optimizer carry no hooks, as always in torch. A model goes to its device before the method is
    made.

    A closure handed to `step` is called once, before the step. Gradients that a `GradScaler` has
    left scaled are unscaled first; a step that it skips is not counted.
    """

    in_pieces = False
    """Whether it takes weights that lie in pieces on several processes (`fully_shard`)."""

    def __init__(self, model: nn.Module, optimizer: Optimizer, where: Where = None) -> None:
        check_model(model)
        self._optimizer = _one_optimizer(optimizer)
        _refuse_second(type(self), self._optimizer)
        self._parameters = prunable(model, where, pieces=self.in_pieces)
        if text := parts_of_weights(model, self._parameters):
            raise ParameterError(f"{text}.")
        trained = trained_by([self._optimizer])
        if strangers := [n for n, p in self._parameters.items() if id(p) not in trained]:
            raise ParameterError(
                f"{', '.join(map(repr, strangers))} is not trained by this"
                f" {type(self._optimizer).__name__}: add it there, or leave it out with where=."
            )
        self.iteration = 0
        """Optimizer steps done."""
        self._handles = [
            self._optimizer.register_step_pre_hook(self._on_step),
            self._optimizer.register_step_post_hook(self._on_stepped),
            self._optimizer.register_state_dict_post_hook(self._on_save),
            self._optimizer.register_load_state_dict_pre_hook(self._on_load),
        ]

    @property
    def key(self) -> str:
        """Under which key the first group of the optimizer's state has that of the method."""
        return f"secateurs.{type(self).__name__}"

    def before(self) -> None:
        """With the gradients of the step, before the optimizer moves anything."""

    def after(self, *, skipped: bool) -> None:
        """After the optimizer has moved the weights; `skipped` where a `GradScaler` forbade it."""

    def state_dict(self) -> dict[str, Any]:
        """What the method needs to continue from here."""
        return {"iteration": self.iteration}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where the state was taken."""
        self.iteration = int(state["iteration"])

    def release(self) -> None:
        """Stop acting. The weights stay as they are."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def groups(self) -> list[tuple[str, nn.Parameter, dict[str, Any]]]:
        """The parameters with the group of the optimizer that each is in."""
        found = {id(p): group for group in self._optimizer.param_groups for p in group["params"]}
        return [(name, p, found[id(p)]) for name, p in self._parameters.items()]

    def _on_step(
        self, _: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        on_gpu = any(p.is_cuda for p in self._parameters.values())
        if on_gpu and torch.cuda.is_current_stream_capturing():
            raise TrainingError(
                f"{type(self).__name__} counts its steps, which a captured CUDA graph does not:"
                " capture without it. Masks of `hold` are followed by a graph, also after they"
                " have changed."
            )
        changed = None
        # torch passes the optimizer itself as the first of the arguments of the step.
        if len(args) > 1 and callable(args[1]):
            changed = ((args[0], _answer_now(args[1]), *args[2:]), kwargs)
        elif callable(kwargs.get("closure")):
            changed = (args, {**kwargs, "closure": _answer_now(kwargs["closure"])})
        try:
            with torch.no_grad():
                _unscale_(self._optimizer)
                self.before()
        except BaseException:
            # What a `GradScaler` has left would otherwise stay, and spoil its next step.
            for left in ("grad_scale", "found_inf"):
                vars(self._optimizer).pop(left, None)
            raise
        return changed

    @property
    def overflown(self) -> bool:
        """Whether a `GradScaler` has found infinite gradients, so that this step moves nothing."""
        found = getattr(self._optimizer, "found_inf", None)
        return found is not None and bool(found)

    def _on_stepped(self, *_: object) -> None:
        skipped = self.overflown
        with torch.no_grad():
            self.after(skipped=skipped)
        self.iteration += not skipped

    def _on_save(self, _: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
        # In the first group and not beside the groups: torch.distributed.checkpoint keeps no more
        # than these and the states of parameters.
        first, *others = state["param_groups"]
        return {**state, "param_groups": [{**first, self.key: self.state_dict()}, *others]}

    def _on_load(self, _: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
        first, *others = state["param_groups"]
        own = first.get(self.key)
        if own is not None:
            self.load_state_dict(own)
        elif self.state_dict().keys() > {"iteration"}:
            raise TrainingError(
                f"the saved state has nothing of {type(self).__name__}, whose masks or numbers"
                " would overwrite the weights that belong to it: load it before"
                f" {type(self).__name__} is made, or release() that first. Nothing was changed."
            )
        first = {key: value for key, value in first.items() if key != self.key}
        return {**state, "param_groups": [first, *others]}


def _one_optimizer(optimizer: Optimizer) -> Optimizer:
    inner = unwrap_optimizer(optimizer)
    if isinstance(inner, LBFGS):
        raise ArgumentError(
            "LBFGS evaluates its closure several times within a step, at weights that the method "
            "does not control: give an optimizer that steps once per gradient, such as SGD or "
            "AdamW."
        )
    if len(family(inner)) > 1:
        raise ArgumentError(
            f"{type(inner).__name__} delegates its update to {type(family(inner)[-1]).__name__}: "
            "give that base optimizer instead."
        )
    return inner


def _refuse_second(kind: type[StepMethod], optimizer: Optimizer) -> None:
    """Two of a kind would overwrite each other's state, and RigL takes away all gradients."""
    hooks: Any = optimizer._optimizer_step_pre_hooks
    if any(type(getattr(hook, "__self__", None)) is kind for hook in hooks.values()):
        raise ArgumentError(
            f"this {type(optimizer).__name__} has a {kind.__name__} already: release() that one, or"
            f" give one {kind.__name__} all the parameters (scope= may be a density for each), or"
            " each an optimizer of its own."
        )


def _answer_now(closure: Callable[[], Any]) -> Callable[[], Any]:
    """The result of the closure, computed now, while the weights are the model's."""
    with torch.enable_grad():
        loss = closure()
    return lambda: loss


def _unscale_(optimizer: Optimizer) -> None:
    """Do what fused optimizers would do themselves with the scale that a `GradScaler` has left."""
    scale = getattr(optimizer, "grad_scale", None)
    if scale is None:
        return
    for group in optimizer.param_groups:
        for p in group["params"]:
            if p.grad is not None:
                p.grad.div_(scale.to(p.grad.device))
    vars(optimizer)["grad_scale"] = None


def check_steps(**counts: object) -> None:
    """Refuse what is not a whole number of optimizer steps; `every` and `steps` are at least 1."""
    for name, value in counts.items():
        low = 1 if name in ("every", "steps") else 0
        if isinstance(value, bool) or not isinstance(value, int) or value < low:
            raise ArgumentError(
                f"{name}={value!r} is not a whole number of optimizer steps, at least {low}."
            )


def check_between(name: str, value: object, low: float, high: float = float("inf")) -> None:
    """Refuse what is not a finite number in [low, high]."""
    real = isinstance(value, int | float) and not isinstance(value, bool)
    if not (real and low <= value <= high and value < float("inf")):  # type: ignore[operator]
        allowed = f"of at least {low:g}"
        if high < float("inf"):
            allowed = f"between {low:g} and {high:g}"
        raise ArgumentError(f"{name}={value!r} is not a finite number {allowed}.")


class TrainingCost:
    """Multiplications of a training so far, compared with those of dense training.

    A dense step costs 3f: the forward pass, the gradient by the inputs and the gradient by the
    weights, f multiplications each. Where weights are zero each of the three falls to the share
    that is left; a step that needs the gradients of dropped weights, too, costs 2f_sparse + f_dense
    (as Evci et al. 2020 count). These are multiplications of a sparse program, not times.

    Args:
        parameters: The masked weights.
        model, example: With an example of the input, multiplications are counted layer by layer,
            those of layers without a mask too; without, every weight counts once, as in a fully
            connected network.
    """

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        model: nn.Module,
        example: "Example | None" = None,
    ) -> None:
        self.steps, self.spent = 0, 0.0
        self._other = 0
        self._dense: dict[str, int] = {name: p.numel() for name, p in parameters.items()}
        if example is not None:
            from secateurs.channels.macs import macs  # loads what captures graphs

            self._dense = dict.fromkeys(parameters, 0)
            for layer in macs(model, example).layers:
                if layer.name in parameters:
                    self._dense[layer.name] += layer.dense
                else:
                    self._other += layer.dense
        self._sparse = self.dense

    @property
    def dense(self) -> float:
        """Multiplications of a dense forward pass."""
        return float(self._other + sum(self._dense.values()))

    @property
    def share(self) -> float:
        """Multiplications so far over those of as many dense steps."""
        return self.spent / (3 * self.dense * self.steps) if self.steps else 0.0

    def take(self, masks: Params, kept: Mapping[str, int] | None = None) -> None:
        """Count with these masks from now on, of which each keeps so many, where that is known."""
        self._sparse = self._other + sum(
            self._dense[name] * count / max(1, masks[name].numel())
            for name, count in (count_each(masks) if kept is None else kept).items()
        )

    def count(self, *, dense_gradient: bool = False) -> None:
        """Count one step."""
        self.steps += 1
        self.spent += 2 * self._sparse + (self.dense if dense_gradient else self._sparse)

    def state_dict(self) -> dict[str, Any]:
        """The counts."""
        return {"steps": self.steps, "spent": self.spent}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The counts again."""
        self.steps, self.spent = int(state["steps"]), float(state["spent"])
