"""Turns whatever the tracer wrote into a program of plain operators with known sizes.

The tracer keeps some of a model's Python as it found it: a region under autocast is one operator
that holds a program, `torch.vmap` is a pair of functions around operators on other shapes, and a
size that depends on values (`h[:, mask]`) is an unknown number. No lowering rule handles any of
these.
"""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.utils import _pytree as pytree

from secateurs.errors import UnsupportedOperation, first_line

# Bodies of regions that change no value (gradients on or off, autocast off), spliced into the
# program that holds them.


def inline_regions(
    module: fx.GraphModule, known: dict[str, Any]
) -> tuple[list[fx.Node], dict[str, tuple[Any, Any]], list[Any]]:
    """The operators in order, with the bodies of regions spliced in."""
    order: list[fx.Node] = []
    packed: dict[str, tuple[Any, Any]] = {}
    outputs: list[Any] = []
    for node in module.graph.nodes:
        args = fx.node.map_aggregate((node.args, dict(node.kwargs)), lambda a: _lookup(known, a))
        if node.op == "output":
            outputs = list(args[0][0])
        # A `with` inside a forward becomes a nested graph; its body is read in place.
        elif (at := body_at(node)) is not None:
            body = getattr(module, node.args[at].target)
            slots = [n for n in body.graph.nodes if n.op == "placeholder"]
            given = args[0][at + 1 :]
            inner = dict(zip((n.name for n in slots), given, strict=True))
            _prefix(body, node.name)
            inner = {f"{node.name}/{k}": v for k, v in inner.items()}
            more, more_packed, results = inline_regions(body, inner)
            order += more
            packed |= more_packed
            known[node.name] = tuple(results)
        elif (
            node.target.__name__ == "getitem" and isinstance(args[0][0], tuple)
            if callable(node.target)
            else False
        ):
            known[node.name] = args[0][0][args[0][1]]
        # An argument of the region: the value outside stands for it.
        elif node.op == "placeholder" and node.name in known:
            continue
        else:
            order.append(node)
            packed[node.name] = args
    return order, packed, outputs


def _prefix(body: fx.GraphModule, name: str) -> None:
    """Names inside a region repeat those outside; make them unique."""
    for node in body.graph.nodes:
        if not node.name.startswith(f"{name}/"):
            node.name = f"{name}/{node.name}"


def _lookup(known: dict[str, Any], leaf: Any) -> Any:
    return known.get(leaf.name, leaf) if isinstance(leaf, fx.Node) else leaf


def body_at(node: fx.Node) -> int | None:
    """Which argument of a region is its body; None for an operator, or a region that computes
    otherwise than it is written.
    """
    if node.op != "call_function":
        return None
    kind = str(node.target)
    if "wrap_with_set_grad_enabled" in kind:
        return 1
    # (device, dtype, enabled, cache, body, …): autocast that is on rounds to another precision.
    off = "wrap_with_autocast" in kind and node.args[2] is False
    return 4 if off else None


aten = torch.ops.aten

# Which arguments decide how many entries the result has; of others, any may.
_DECIDING = {
    aten.index.Tensor: 1,
    aten.repeat_interleave.self_Tensor: 1,
    aten.repeat_interleave.Tensor: 0,
    aten.masked_select.default: 1,
}
_SIZES = (torch.SymInt, torch.SymBool)
_UNBACKED = ("u", "zuf")  # how torch names sizes that are known only at run time


def plain_program(
    program: ExportedProgram, tensors: Sequence[Tensor], kind: str
) -> ExportedProgram:
    """The program without regions, transformations and open sizes.

    Args:
        program: of `torch.export`.
        tensors: what the model was called with; only sizes that the model's own tensors decide
            are read off, never those that the input decides.
        kind: the model's class, for messages.

    Raises:
        UnsupportedOperation: the sizes of values depend on the input.
    """
    if any(map(_is_region, _nodes_of(program))):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                # An empty table decomposes nothing: regions are opened, that is all.
                program = program.run_decompositions({})
        # The tracer may raise any error.
        except Exception as error:
            raise UnsupportedOperation(
                f"{kind} cannot be read: torch.export of torch {torch.__version__} cannot open what"
                f" its forward does in a region of its own, under torch.func or torch.autocast"
                f" ({type(error).__name__}: {first_line(error)}). Write it with plain operators, or"
                " analyse the parts around it."
            ) from error
    if any(_unknown(node.meta.get("val")) for node in program.graph_module.graph.nodes):
        _Settling(program, kind).settle(tensors)
    return program


def _nodes_of(program: ExportedProgram) -> list[fx.Node]:
    """All nodes, those inside regions as well."""
    return [
        node
        for part in program.graph_module.modules()
        if isinstance(part, fx.GraphModule)
        for node in part.graph.nodes
    ]


def _is_region(node: fx.Node) -> bool:
    """Something called that is neither an operator nor arithmetic of Python, nor a region whose
    body can be read in its place.
    """
    if node.op != "call_function" or isinstance(node.target, torch._ops.OpOverload):
        return False
    if body_at(node) is not None:
        return False
    module = getattr(node.target, "__module__", None) or ""
    return isinstance(node.target, torch._ops.HigherOrderOperator) or (
        module.startswith("torch._functorch")
    )


def _unknown(value: Any) -> set[Any]:
    """The sizes in a value that were not known when an operator was traced; a check further down
    may have shown since what they are.
    """
    if isinstance(value, list | tuple):
        return set().union(*map(_unknown, value))
    if isinstance(value, Tensor):
        return set().union(*(_unknown(size) for size in value.shape))
    if not isinstance(value, _SIZES):
        return set()
    # `_expr` is what was written at first, before it was known.
    return {s for s in value.node._expr.free_symbols if s.name.startswith(_UNBACKED)}


class _Settling:
    """One program whose sizes are settled by running it once."""

    def __init__(self, program: ExportedProgram, kind: str) -> None:
        self.program, self.kind = program, kind
        self.graph = program.graph_module.graph
        self.sizes: dict[Any, int] = {}

    def settle(self, tensors: Sequence[Tensor]) -> None:
        """Put the sizes that the model's own tensors decide in the place of unknown ones."""
        self._refuse_sizes_of_inputs()
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            _Noting(self).run(*self._given(tensors))
        for node in self.graph.nodes:
            node.meta["val"] = self._settled(node.meta.get("val"), node)
        self._write_numbers()

    def note(self, node: fx.Node, result: Any) -> None:
        """Learn sizes from the actual result of a node."""
        expected = node.meta.get("val")
        if isinstance(expected, torch.SymInt) and isinstance(result, int):
            self._learn(expected, result)
        both = (
            [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, Tensor)]
            for value in (expected, result)
        )
        for before, after in zip(*both, strict=False):
            for size, known in zip(before.shape, after.shape, strict=False):
                self._learn(size, known)

    def _learn(self, size: Any, known: int) -> None:
        if isinstance(size, torch.SymInt):
            symbol = size.node._expr
            if symbol in _unknown(size):
                self.sizes.setdefault(symbol, int(known))

    def _refuse_sizes_of_inputs(self) -> None:
        inputs = set(self.program.graph_signature.user_inputs)
        moved: set[fx.Node] = set()
        for node in self.graph.nodes:
            before = set().union(*(_unknown(n.meta.get("val")) for n in node.all_input_nodes))
            if node.name in inputs or moved.intersection(node.all_input_nodes):
                moved.add(node)
            if _unknown(node.meta.get("val")) - before and moved.intersection(_deciding(node)):
                raise UnsupportedOperation(
                    f"{self.kind} cannot be read: how many entries {node.target} gives depends on"
                    " the data. Multiply by a mask instead of selecting entries with it, or analyse"
                    " the part before it."
                )

    def _given(self, tensors: Sequence[Tensor]) -> list[Any]:
        """What the program's placeholders stand for, in order."""
        fed, program = iter(tensors), self.program
        held: Mapping[str, Any] = {**program.constants, **program.state_dict}
        found = []
        for spec in program.graph_signature.input_specs:
            given = (
                next(fed, None)
                if spec.kind is InputKind.USER_INPUT
                else held.get(spec.target or "")
            )
            # Copies: what the program writes into must not be the model's own.
            found.append(given.detach().clone() if isinstance(given, Tensor) else given)
        return found

    def _settled(self, value: Any, node: fx.Node) -> Any:
        if isinstance(value, list | tuple):
            return type(value)(self._settled(one, node) for one in value)
        if isinstance(value, _SIZES):
            return self._number(value, node)
        if not isinstance(value, Tensor) or not _unknown(value):
            return value
        shape = [self._number(size, node) for size in value.shape]
        mode = getattr(value, "fake_mode", None)
        if mode is None:
            return torch.empty(shape, dtype=value.dtype, device="meta")
        with mode:
            return torch.empty(shape, dtype=value.dtype, device=value.device)

    def _number(self, size: Any, node: fx.Node) -> Any:
        if not _unknown(size):
            return size
        known = size.node._expr.subs(self.sizes)
        if known.is_Integer:
            return int(known)
        if str(known) in ("True", "False"):
            return bool(known)
        raise UnsupportedOperation(
            f"{self.kind} cannot be read: {node.target} has a size ({size}) that depends on values"
            " and on the batch at once. Give that size in the code."
        )

    def _write_numbers(self) -> None:
        """Sizes that are numbers now stand in arguments as numbers; checks of them are done."""
        known = {
            node: node.meta["val"]
            for node in self.graph.nodes
            if node.op == "call_function" and type(node.meta.get("val")) in (int, bool)
        }
        for node in reversed([*self.graph.nodes]):
            node.args = fx.node.map_arg(node.args, lambda n: known.get(n, n))
            node.kwargs = fx.node.map_arg(node.kwargs, lambda n: known.get(n, n))
            if node in known or (
                node.target is aten._assert_scalar.default and not node.all_input_nodes
            ):
                # Users come after what they use: they were visited before.
                self.graph.erase_node(node)


class _Noting(fx.Interpreter):
    """Runs a program and shows every result."""

    def __init__(self, settling: _Settling) -> None:
        super().__init__(settling.program.graph_module)
        self.settling = settling

    def run_node(self, n: fx.Node) -> Any:
        """The result of one node."""
        result = super().run_node(n)
        self.settling.note(n, result)
        return result


def _deciding(node: fx.Node) -> list[fx.Node]:
    """The arguments that decide the size of a node's result."""
    target: Any = node.target
    position = _DECIDING.get(target)
    if position is None or position >= len(node.args):
        return node.all_input_nodes
    found: list[fx.Node] = []
    fx.node.map_arg(node.args[position], lambda n: found.append(n))
    return found
