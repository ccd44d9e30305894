"""Which tensor can take a constant: a bias, the running mean behind it, or a bias not there yet."""

from dataclasses import dataclass

from torch import nn

from secateurs.graph import Affine, Graph
from secateurs.ship.compaction.labels import Use


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A tensor that can take a constant: bias or running mean (with sign −1), or a bias that is not
    there yet."""

    name: str
    sign: float = 1.0
    new: bool = False


def target_of(model: nn.Module, graph: Graph, uses: list[Use]) -> Target | None:
    """The layer's bias, else the running mean of its batch norm, else a new bias."""
    nodes = {use.node.name for use in uses}
    targets = {_target_of_one(model, graph, use.node, nodes) for use in uses}
    return targets.pop() if len(targets) == 1 else None


def _target_of_one(
    model: nn.Module, graph: Graph, node: Affine, nodes: set[str]
) -> Target | None:
    if node.bias is not None:
        return _own(graph, node, nodes)
    after = [graph.by_name[name] for name in graph.consumers[node.name]]
    if len(after) == 1 and isinstance(after[0], Affine) and after[0].bias is not None:
        follower, read = after[0], after[0].bias.names
        mean = next((name for name in read if _is_mean(model, name)), None)
        # A batch norm subtracts its running mean, hence the sign; another reader would
        # be shifted, too.
        if mean is not None and _readers(graph, mean) == {follower.name}:
            return Target(name=mean, sign=-1.0)
        if (
            follower.weight is None
            and (own := _own(graph, follower, {follower.name})) is not None
        ):
            return own
    return _new_bias(model, node)


def _own(graph: Graph, node: Affine, nodes: set[str]) -> Target | None:
    """The bias of a node, when it is a parameter that nobody else reads."""
    name = None if node.bias is None else node.bias.direct
    if name is None or len(graph.parameters.get(name, ())) != 1:
        return None
    return Target(name=name) if _readers(graph, name) <= nodes else None


def _new_bias(model: nn.Module, node: Affine) -> Target | None:
    """A layer of PyTorch's own made without bias takes one."""
    owner = model.get_submodule(node.place.module)
    plain = (
        isinstance(owner, nn.Linear | nn.modules.conv._ConvNd) and owner.bias is None
    )
    direct = "" if node.weight is None else str(node.weight.direct)
    mine = dict(model.named_parameters(remove_duplicate=False)).get(direct)
    # Only where the module's own weight is the one in use
    # is it sure that its forward adds `bias`.
    if not plain or mine is None or getattr(owner, "weight", None) is not mine:
        return None
    return Target(name=f"{node.place.module}.bias", new=True)


def _is_mean(model: nn.Module, name: str) -> bool:
    """Whether a tensor is the running mean of a batch norm."""
    path, _, leaf = name.rpartition(".")
    if leaf != "running_mean":
        return False
    # The type decides: any module may call a buffer of its own running_mean.
    return isinstance(model.get_submodule(path), nn.modules.batchnorm._NormBase)


def _readers(graph: Graph, name: str) -> set[str]:
    """The nodes that read a tensor."""
    return {
        node.name
        for node in graph.nodes
        if isinstance(node, Affine)
        for source in (node.weight, node.bias)
        if source is not None and name in source.names
    }
