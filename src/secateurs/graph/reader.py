"""Interprets exported operators: lowers what depends on the input, keeps the rest as sources."""

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from secateurs.errors import UnsupportedOperation
from secateurs.graph.builder import Builder
from secateurs.graph.export import Exported
from secateurs.graph.ir import Graph
from secateurs.graph.lower import LOWERINGS, Gap, Many, Unknown, Value
from secateurs.graph.opaque import read_opaquely
from secateurs.graph.operators import (
    draws,
    functional,
    is_shape_only,
    real,
    stand_in,
    watches,
)
from secateurs.graph.primitives import Cast
from secateurs.graph.reading.aliasing import nodes_in
from secateurs.graph.reading.assembly import assembled, chosen_output
from secateurs.graph.reading.given import given
from secateurs.graph.reading.places import cast_at, place_of
from secateurs.graph.renaming import Renamed, resolved
from secateurs.graph.sources import Source
from secateurs.graph.static import SAME, StaticMany, computed
from secateurs.graph.wrapper import kind_of, own_place

_NUMBERS = (int, float, bool, torch.SymInt, torch.SymFloat, torch.SymBool)


class Reader:
    """Interprets the exported operators: lowers what depends on the input, keeps the rest as
    sources.
    """

    def __init__(
        self,
        model: nn.Module,
        exported: Exported,
        output: str | int | None,
        *,
        opaque: bool = False,
    ) -> None:
        self.model, self.program, self.leaves = (
            model,
            exported.program,
            exported.leaves,
        )
        self.wanted = output
        self.opaque = opaque
        self.gaps: dict[str, None] = {}
        self.casts: list[Cast] = []

    def graph(self) -> Graph:
        """Lower the operators the chosen output depends on."""
        renamed = self._renamed()
        kind = kind_of(self.model)
        position, output_name = chosen_output(self.leaves, self.wanted, kind)
        result = renamed.outputs[position]
        self.build = Builder(tensors=self._tensors())
        self._parameters = {
            name for name, _ in self.model.named_parameters(remove_duplicate=False)
        }
        placeholders = given(self.program, self.model, self.build)
        self.env: dict[str, Any] = {**placeholders.values}
        # Only what the chosen output needs: an uncovered auxiliary head is no reason to
        # refuse.
        for node in renamed.needed(result):
            self._visit(node, renamed)
        value = self.env[result.name]
        # After the whole pass, so that all gaps are told at once.
        self._refuse_gaps()
        # An output that does not depend on the input is a constant network.
        if isinstance(value, Source):
            value = self.build.affine(None, bias=value)
        return assembled(
            self.build,
            placeholders,
            self.casts,
            output=value,
            output_name=output_name,
            outputs=self.leaves,
        )

    def _renamed(self) -> Renamed:
        """In-place operators resolved, and the updates of buffers dropped from the outputs."""
        kind = kind_of(self.model)
        self.program, renamed = resolved(self.program, kind)
        # Functionalised buffer updates come first.
        skipped = len(renamed.outputs) - len(self.leaves)
        renamed.outputs = renamed.outputs[skipped:]
        return renamed

    def _tensors(self) -> dict[str, Tensor]:
        own: dict[str, Tensor] = dict(
            self.model.named_buffers(remove_duplicate=False)
        )
        own.update(self.model.named_parameters(remove_duplicate=False))
        return own

    def _visit(self, node: fx.Node, renamed: Renamed) -> None:
        if node.op == "placeholder" or node.op == "get_attr":
            return
        packed = renamed.arguments(node)
        args, kwargs = self._arguments(packed)
        leaves = pytree.tree_leaves((args, kwargs))
        # What builds on a gap is no gap of its own.
        if any(isinstance(leaf, Unknown) for leaf in leaves):
            self.env[node.name] = Unknown()
        elif draws(node.target):
            self.env[node.name] = self._gap(
                node, "it draws random numbers, so no two answers are equal"
            )
        elif watches(node.target):
            self.env[node.name] = self._gap(
                node,
                "it writes down what it sees while it runs: quantise for good, and give"
                " secateurs.graph.dequantized(torch.ao.quantization.convert(model))",
            )
        elif node.target is operator.getitem:
            self.env[node.name] = self._item(node, args)
        elif any(isinstance(leaf, Value | Many) for leaf in leaves):
            self.env[node.name] = self._lower(node, nodes_in(packed), args, kwargs)
        else:
            self.env[node.name] = self._static(node, args, kwargs)

    def _arguments(self, packed: tuple[Any, Any]) -> tuple[Any, Any]:
        def look(leaf: Any) -> Any:
            return (
                self.env.get(leaf.name, leaf) if isinstance(leaf, fx.Node) else leaf
            )

        args, kwargs = fx.node.map_aggregate(packed, look)
        return args, kwargs

    def _item(self, node: fx.Node, args: Any) -> Any:
        source, index = args
        try:
            if isinstance(source, Many):
                self.build.place = place_of(node)
                return source.pick(index)
            return source[index]
        except Gap as gap:
            return self._gap(node, str(gap))

    def _lower(
        self, node: fx.Node, read: Sequence[fx.Node], args: Any, kwargs: Any
    ) -> Any:
        self.build.place = place_of(node)
        if is_shape_only(node.target):
            return self._shape_only(node, args, kwargs)
        rule_key = functional(node.target)
        if rule_key not in LOWERINGS:
            return self._unread(node, args, kwargs, "")
        # A rule would read integers or comparisons as real numbers.
        if not real(node.meta.get("val")):
            return self._unread(
                node, args, kwargs, "its result is not real floating-point"
            )
        cast = cast_at(node, read, self.env)
        if cast is not None:
            self.casts.append(cast)
        try:
            return self._checked(
                node, LOWERINGS[rule_key](self.build, *args, **kwargs)
            )
        except Gap as gap:
            return self._unread(node, args, kwargs, str(gap))
        except (
            TypeError,
            AttributeError,
            IndexError,
            ValueError,
            RuntimeError,
        ) as error:
            # A tensor in a position, or of a shape, that the rule does not expect.
            said = f"this combination of arguments is not covered ({error})"
            return self._unread(node, args, kwargs, said)

    def _checked(self, node: fx.Node, value: Any) -> Any:
        expected = node.meta.get("val")
        if (
            isinstance(value, Value)
            and isinstance(expected, Tensor)
            and value.shape != tuple(expected.shape)
        ):
            # Shapes are checked node by node: a rule that is wrong is found where it is
            # wrong.
            raise Gap(
                f"the rule gives shape {value.shape} where the model has {tuple(expected.shape)}"
            )
        return value

    def _static(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        """An operator on parameters, buffers and constants only: run as it is, when asked for."""
        expected = node.meta.get("val")
        if isinstance(expected, _NUMBERS):
            return self._number(node, args, kwargs)
        if not isinstance(expected, Tensor):
            return StaticMany(node, args, kwargs)
        # detach, clone and the like: the source itself keeps its name.
        if node.target in SAME and isinstance(args[0], Source):
            return args[0]
        return computed(node, args, kwargs)

    def _number(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        """A number that the model takes out of a tensor of its own: read now, like an index."""
        leaves = pytree.tree_leaves((args, kwargs))
        names = {n for leaf in leaves if isinstance(leaf, Source) for n in leaf.names}
        trained = sorted(names & self._parameters)
        if trained:
            return self._gap(
                node, f"it makes a plain number of the parameter {', '.join(trained)}"
            )
        args, kwargs = pytree.tree_map(
            lambda a: self.build.literal(a) if isinstance(a, Source) else a,
            (args, kwargs),
        )
        return node.target(*args, **kwargs)  # type: ignore[operator]

    def _shape_only(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        """zeros_like and its relatives: only the shape of the activation matters."""
        bare = pytree.tree_map(
            # Real zeros, for the operator is run here and now.
            lambda a: torch.zeros(a.shape) if isinstance(a, Value) else a,
            (args, kwargs),
        )
        value = node.target(*bare[0], **bare[1])  # type: ignore[operator]
        return self.build.constant(value.to(torch.float64))

    def _unread(self, node: fx.Node, args: Any, kwargs: Any, reason: str) -> Any:
        """What no lowering rule covers: an opaque node where those are wanted, else a gap."""
        if not self.opaque:
            return self._gap(node, reason)
        return read_opaquely(self.build, node, args, kwargs)

    def _gap(self, node: fx.Node, reason: str) -> Any:
        """Note the gap and go on with a value of the right shape, so that later gaps are found
        too.
        """
        place = own_place(place_of(node), self.model)
        self.gaps[f"{place}: {reason}" if reason else str(place)] = None
        return stand_in(node.name, node.meta.get("val"))

    def _refuse_gaps(self) -> None:
        if self.gaps:
            raise UnsupportedOperation(
                f"{kind_of(self.model)} uses {len(self.gaps)} operation(s) that paths do not"
                f" cover: {'; '.join(self.gaps)}. Replace them, or register a rule with"
                " secateurs.graph.lowers."
            )
