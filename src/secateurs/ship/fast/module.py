"""The fast path as a module: called like the model it was made from, with the same structure of
outputs; and what all modules are that compute with the weights they were made with.
"""

import copy
import operator
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar, NoReturn, Self, TypeAlias

import torch
from rich.table import Table
from torch import Tensor, nn
from torch.nn.modules import module as hooks
from torch.utils import _pytree as pytree

from secateurs.base.printing import Printed
from secateurs.errors import ArgumentError, ShipError
from secateurs.ship.fast.compiled import Program, Shortcut, enter_through_, no_shortcut, shortcut
from secateurs.ship.fast.operations import Outside, Part, Reference, Segment, Steps, tensors, work

# Hooks of all modules, which see a call through nn.Module.
BEFORE, AFTER = hooks._global_forward_pre_hooks, hooks._global_forward_hooks

Runner: TypeAlias = Callable[[dict[str, Any], int], None]
"""Runs one part for a number of images: reads and writes tensors by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """A segment and its program."""

    segment: Segment
    program: Program
    dtype: torch.dtype

    def __call__(self, env: dict[str, Any], images: int) -> None:
        """Planes in, planes out; outputs are fresh tensors."""
        # Kernels walk memory number by number, so a view with other strides is copied first. A view
        # with inverted signs keeps them in a flag that the kernels do not see.
        given = [env[name].contiguous().resolve_neg() for name, _ in self.segment.enters]
        made = [
            torch.empty((images, *self.segment.dims[name]), dtype=self.dtype)
            for name, _ in self.segment.leaves
        ]
        self.program.run(given, made, images, torch.get_num_threads())
        env.update(zip((name for name, _ in self.segment.leaves), made, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class InTorch:
    """An operator that stays in torch."""

    step: Outside

    def __call__(self, env: dict[str, Any], images: int) -> None:
        """The operator on the tensors it refers to."""
        args, kwargs = pytree.tree_map(
            lambda leaf: env[leaf.name] if isinstance(leaf, Reference) else leaf,
            (self.step.args, self.step.kwargs),
        )
        env[self.step.to] = self.step.target(*args, **kwargs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """How one layer runs."""

    place: str
    density: float
    macs: int  # multiplications with non-zero weights, for one image
    ways: tuple[str, ...]  # for each group size


@dataclass(frozen=True, slots=True, kw_only=True)
class FastReport(Printed):
    """How the layers of a fast module run, and what it gained.

    Attributes:
        seconds: Per batch size, 1 and up to 64, the median of interleaved calls of the "model", of
            the "compact" one if channels were dead, of the "fast" program, and of the "layers"
            compiled inside the model's modules, with `threads` threads; those of an earlier build
            of such a network on this machine, if there was one; empty if not timed.
        outside: The operators that stay in torch, with place and reason.
        remembered: How many timings of layers were taken from earlier builds on this machine.
    """

    layers: tuple[Layer, ...]
    groups: tuple[int, ...]
    outside: tuple[str, ...]
    seconds: dict[int, dict[str, float]]
    threads: int
    built_in: float
    remembered: int = 0

    @property
    def macs(self) -> int:
        """Multiplications with non-zero weights for one image."""
        return sum(layer.macs for layer in self.layers)

    def __rich__(self) -> Table:
        # Both forms may have been timed. Groups are those of a program; layers have none.
        own = "fast" if self.groups else "layers"
        gains = ", ".join(
            f"batch {n}: {took['model'] / took[own if own in took else 'fast']:.2f}×"
            for n, took in self.seconds.items()
        )
        table = Table(
            title=f"fast path, {self.macs / 1e6:.1f} MMAC an image; {gains or 'not timed'}"
        )
        for name in (
            "layer",
            "density",
            "MMAC",
            *([f"group of {g}" for g in self.groups] or ["way"]),
        ):
            table.add_column(name)
        for layer in self.layers:
            table.add_row(
                layer.place,
                f"{layer.density:.3f}",
                f"{layer.macs / 1e6:.2f}",
                *layer.ways,
            )
        for line in self.outside:
            table.add_row(line, "", "", *["in torch"] * max(1, len(self.groups)))
        return table


class Fixed(nn.Module):
    """A program made from a model, `plain`: anything that would change that model through it is
    refused.

    `plain` is a submodule, so torch's own ways to change a module would change the user's model and
    leave the program as it is.
    """

    plain: nn.Module
    what: ClassVar[str] = "a program"

    def train(self, mode: bool = True) -> Self:
        """Evaluation only: the program has no gradients."""
        if mode:
            self._refuse("trained", "train")
        return super().train(False)

    def load_state_dict(self, *_: Any, **__: Any) -> NoReturn:
        """Refused: the program has the weights it was made with."""
        self._refuse("given other weights", "load them into")

    # Called by torch when this module is part of another one.
    def _load_from_state_dict(self, *_: Any, **__: Any) -> NoReturn:
        self._refuse("given other weights", "load them into")

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """`.half()`, `.to(…)` and the like are accepted if nothing changes."""
        tensors = (*self.plain.parameters(), *self.plain.buffers())
        for dtype, device in {(t.dtype, t.device) for t in tensors}:
            before = torch.empty(0, dtype=dtype, device=device)
            after = fn(before)
            if (after.dtype, after.device) != (before.dtype, before.device):
                self._refuse(f"moved to {after.dtype} on {after.device}", "convert")
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """A copy with its own model; the program is shared, since it never changes."""
        twin = type(self).__new__(type(self))
        memo[id(self)] = twin
        for name, value in self.__dict__.items():
            # Hooks too: torch keeps them, like the modules, in dictionaries.
            own = isinstance(value, dict) and name != "_modules"
            twin.__dict__[name] = copy.copy(value) if own else value
        twin.__dict__["_modules"] = copy.deepcopy(self._modules, memo)
        return twin

    def _refuse(self, what: str, verb: str) -> NoReturn:
        raise ArgumentError(
            f"{self.what} cannot be {what}: it has the weights that its model had when it was made."
            f" {verb[0].upper()}{verb[1:]} that model, `.plain`, and make this anew from it."
        )


class FastModule(Fixed):
    """A model that runs only its non-zeros, on compiled kernels; see `accelerate`.

    The weights are those at the time it was made. `plain` is the model it was made from, `report`
    says how each layer runs. It is for inference: under a gradient, in training mode and on other
    shapes it refuses. A deepcopy has a copy of `plain` and shares the program.
    """

    what = "a fast module"

    def __init__(
        self,
        plain: nn.Module,
        steps: Steps,
        runners: list[Runner],
        dtype: torch.dtype,
        report: FastReport,
    ) -> None:
        super().__init__()
        self.plain, self.report, self.dtype = plain, report, dtype
        self._steps, self._runners = steps, runners
        self._last_use = _last_uses(steps, runners)
        self._quick = _quick(steps, runners, dtype)
        self._entry = getattr(self._quick, "__self__", None)
        enter_through_(FastModule)
        self.training = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """As any module; one input and one output take a shorter way, for tiny networks.

        Where the entry could be compiled, `enter_through_` puts the same in C in its place.
        """
        hooked = self._forward_hooks or self._forward_pre_hooks or BEFORE or AFTER
        if not (hooked or kwargs) and len(args) == 1:
            found = self._quick(args[0])
            if found is not None:
                return found
        return self._long_way(*args, **kwargs)

    def _long_way(self, *args: Any, **kwargs: Any) -> Any:
        return super().__call__(*args, **kwargs)

    def forward(self, *args: Tensor, **kwargs: Tensor) -> Any:
        """The model's outputs, equal to rounding."""
        given = [*args, *kwargs.values()]
        images = self._check(given)
        env: dict[str, Any] = dict(zip(self._steps.inputs, given, strict=True))
        for at, runner in enumerate(self._runners):
            runner(env, images)
            # Freed as early as in a forward pass of torch; otherwise deep networks would need far
            # more memory.
            for name in self._last_use[at]:
                env.pop(name, None)
        leaves = [env[o.name] if isinstance(o, Reference) else o for o in self._steps.outputs]
        return pytree.tree_unflatten(leaves, self._steps.structure)

    def _check(self, given: list[Any]) -> int:
        """Check every shape before anything runs, since the kernels trust them."""
        if len(given) != len(self._steps.dims):
            raise ArgumentError(
                f"{len(given)} inputs where the model takes {len(self._steps.dims)}."
            )
        for tensor, dims in zip(given, self._steps.dims, strict=True):
            if (
                not isinstance(tensor, Tensor)
                or tensor.ndim != len(dims) + 1
                or tuple(tensor.shape[1:]) != dims
            ):
                shape = tuple(tensor.shape) if isinstance(tensor, Tensor) else type(tensor).__name__
                raise ArgumentError(
                    f"an input of shape {shape} where this program takes ('batch', "
                    f"{', '.join(map(str, dims))}): "
                    "accelerate the model again with an example of that shape."
                )
            if (
                tensor.dtype != self.dtype
                or tensor.device.type != "cpu"
                or tensor.layout != torch.strided
            ):
                sparse = "" if tensor.layout == torch.strided else "sparse "
                name = str(tensor.dtype).removeprefix("torch.")
                raise ArgumentError(
                    f"got a {sparse}{tensor.dtype} input on {tensor.device}, but this program takes"
                    f" dense {self.dtype} tensors on the CPU: convert the input, or accelerate a"
                    f" {name} model."
                )
            if tensor.requires_grad and torch.is_grad_enabled():
                raise ShipError(
                    "the fast path has no gradients: call it under torch.inference_mode()."
                )
            # Kernels would read at address 0.
            if not _is_in_memory(tensor):
                raise ShipError(
                    "a fast module computes with values, so it can be neither traced nor exported"
                    " nor mapped by vmap: do that with the model it was made from, `.plain`."
                )
        sizes = {int(tensor.shape[0]) for tensor in given}
        if len(sizes) != 1:
            raise ArgumentError(f"inputs of different batch sizes: {sorted(sizes)}.")
        return sizes.pop()

    def __getstate__(self) -> Any:
        raise ShipError(
            "a fast module belongs to its process and machine: "
            "save the model and accelerate it there."
        )


def _is_in_memory(tensor: Tensor) -> bool:
    """Whether the tensor has values; those of a tracer have none."""
    try:
        return tensor.untyped_storage().device.type == "cpu"
    except NotImplementedError:  # a batched tensor of vmap
        return False


def _quick(steps: Steps, runners: list[Runner], dtype: torch.dtype) -> Shortcut:
    """The short way into a network that is one program with one input and one output."""
    one = runners[0] if len(runners) == 1 else None
    if not isinstance(one, Compiled) or not steps.structure.is_leaf():
        return no_shortcut
    segment = one.segment
    if not len(segment.enters) == len(segment.leaves) == len(steps.dims) == 1:
        return no_shortcut
    made = segment.dims[segment.leaves[0][0]]
    # Pools have no products but take time all the same.
    numbers = prod(steps.dims[0])
    products = numbers + sum(work(op, segment.planes) for op in segment.operations)
    return shortcut(one.program, dtype, steps.dims[0], made, products)


def _last_uses(steps: Steps, runners: list[Runner]) -> list[list[str]]:
    """The tensors that are no longer needed after each part."""
    reads = [_reads(runner) for runner in runners]
    kept = {o.name for o in steps.outputs if isinstance(o, Reference)}
    # A later part overwrites an earlier one, so what remains is the last use.
    last = {name: at for at, names in enumerate(reads) for name in names}
    return [
        [name for name, use in last.items() if use == at and name not in kept]
        for at in range(len(runners))
    ]


def _reads(runner: Runner) -> tuple[str, ...]:
    match runner:
        case Compiled():
            return tuple(name for name, _ in runner.segment.enters)
        case InTorch():
            return tensors(runner.step)
    return ()


def in_torch(parts: list[Part]) -> list[Outside]:
    """The parts that stay in torch, except those that only handle tuples and sizes."""
    trivial = {operator.getitem, torch.ops.aten.sym_size.int}
    return [part for part in parts if isinstance(part, Outside) and part.target not in trivial]
