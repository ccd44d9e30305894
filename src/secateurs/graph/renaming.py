"""In-place operators as new values: after `y = x.add_(z)`, whoever reads `x` later reads `y`.

That is exact as long as no other name for the same memory is read afterwards. Where one is, `None`
is returned and the tracer's own functionalisation (slower) has to be used.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram

from secateurs.errors import UnsupportedOperation
from secateurs.graph.reading.aliasing import (
    aliased_value,
    changed_value,
    hidden_aliases,
    nodes_in,
    skip_identities,
    skip_names,
)
from secateurs.graph.reading.regions import inlined


@dataclass(slots=True)
class Renamed:
    """The operators of a graph, inlined, with arguments that respect in-place changes."""

    order: list[fx.Node]
    packed: dict[str, tuple[Any, Any]]
    outputs: list[Any]

    def arguments(self, node: fx.Node) -> tuple[Any, Any]:
        """The arguments after renaming."""
        return self.packed[node.name]

    def needed(self, result: Any) -> Iterator[fx.Node]:
        """The operators the result depends on, in order."""
        wanted: set[str] = set()
        stack = [result.name]
        while stack:
            name = stack.pop()
            if name not in wanted:
                wanted.add(name)
                stack.extend(
                    node.name for node in nodes_in(self.packed.get(name, ()))
                )
        return (node for node in self.order if node.name in wanted)


def resolved(program: ExportedProgram, model: str) -> tuple[ExportedProgram, Renamed]:
    """The program with its in-place operators resolved.

    Renaming is tried first, because the tracer's own functionalisation is slower and trusts the
    operators' schemas, some of which hide an alias.
    """
    skip_identities(program.graph_module)
    renamed = rename_in_place(program.graph_module)
    if renamed is None:
        # A change through a second name of the whole value (an embedding that rescales itself
        # detaches its table first) is a change of the value, and renaming can follow it.
        skip_names(program.graph_module)
        renamed = rename_in_place(program.graph_module)
    if renamed is not None:
        return program, renamed
    hidden = hidden_aliases(program.graph_module)
    if hidden:
        raise UnsupportedOperation(
            f"{model} changes values in place, and {', '.join(hidden)} may"
            " return its input itself, so that who reads which value is unknown. Write the"
            " change out of place: y = f(x) instead of f_(x)."
        )
    functional = _functional(program, model)
    renamed = rename_in_place(functional.graph_module)
    if renamed is None:
        raise UnsupportedOperation(f"{model} changes values in place through views.")
    return functional, renamed


def _functional(program: ExportedProgram, model: str) -> ExportedProgram:
    try:
        functional: ExportedProgram = program.run_decompositions({})
    # Tracers of some versions refuse changed parameters, by errors of their own insides.
    except (AssertionError, RuntimeError) as error:
        raise UnsupportedOperation(
            f"{model} changes values in place in a way that torch {torch.__version__} cannot"
            " write out of place. Write y = f(x) instead of f_(x), or try another torch."
        ) from error
    return functional


def rename_in_place(module: fx.GraphModule) -> Renamed | None:
    """Resolve in-place operators by renaming; None where views of a changed value are read
    afterwards.
    """
    order, packed, outputs = inlined(module, {})
    current: dict[str, fx.Node] = {}
    memory: dict[str, str] = {}
    stale: set[str] = set()
    for node in order:
        args = fx.node.map_aggregate(
            packed[node.name], lambda a: current.get(getattr(a, "name", ""), a)
        )
        # Another name of changed memory is read: renaming would hand it the old value.
        if any(read.name in stale for read in nodes_in(args)):
            return None
        packed[node.name] = args
        target = changed_value(node, args)
        if target is not None:
            # Every other name of the same memory shows the change as well.
            stale |= {
                name for name, root in memory.items() if root == _root(memory, target)
            } - {target.name}
            stale |= {_root(memory, target)} - {target.name}
            _redirect(current, target, node)
        source = target or aliased_value(node, args)
        memory[node.name] = _root(memory, source) if source is not None else node.name
        # The result of the change itself is up to date.
        stale.discard(node.name)
    final = [current.get(getattr(o, "name", ""), o) for o in outputs]
    return (
        None
        if any(getattr(o, "name", "") in stale for o in final)
        else Renamed(order, packed, final)
    )


def _redirect(current: dict[str, fx.Node], old: fx.Node, new: fx.Node) -> None:
    # Chains: what was renamed before to the old value now means the new one.
    for name, node in list(current.items()):
        if node.name == old.name:
            current[name] = new
    current[old.name] = new


def _root(memory: dict[str, str], node: fx.Node) -> str:
    return memory.get(node.name, node.name)
