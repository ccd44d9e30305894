"""Models as graphs of six primitives: capture once, analyse many times."""

from secateurs.graph.builder import Builder
from secateurs.graph.capture import capture
from secateurs.graph.dequantized import dequantized
from secateurs.graph.export import Example
from secateurs.graph.ir import Graph, affines
from secateurs.graph.joint import Joint, joint, same_structure
from secateurs.graph.operators import LOWERINGS, Gap, Value, lowers, lowers_opaquely
from secateurs.graph.primitives import (
    Activation,
    Add,
    Affine,
    Axes,
    Bilinear,
    Cast,
    Computed,
    Input,
    Named,
    Node,
    Opaque,
    Place,
    Pool,
    Source,
    State,
    Structural,
)
from secateurs.graph.propagate import Evaluate, Flow, evaluate, propagate

__all__ = [
    "LOWERINGS",
    "Activation",
    "Add",
    "Affine",
    "Axes",
    "Bilinear",
    "Builder",
    "Cast",
    "Computed",
    "Evaluate",
    "Example",
    "Flow",
    "Gap",
    "Graph",
    "Input",
    "Joint",
    "Named",
    "Node",
    "Opaque",
    "Place",
    "Pool",
    "Source",
    "State",
    "Structural",
    "Value",
    "affines",
    "capture",
    "dequantized",
    "evaluate",
    "joint",
    "lowers",
    "lowers_opaquely",
    "propagate",
    "same_structure",
]
