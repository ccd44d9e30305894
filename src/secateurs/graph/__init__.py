"""Models as graphs of six primitives: capture once, analyse many times."""

from secateurs.graph.builder import Builder
from secateurs.graph.capture import Example, capture
from secateurs.graph.checking.structure import same_structure
from secateurs.graph.ir import Graph, affines
from secateurs.graph.joint import Joint, joint
from secateurs.graph.lower import LOWERINGS, Gap, Value, lowers, lowers_opaquely
from secateurs.graph.primitives import (
    Activation,
    Add,
    Affine,
    Axes,
    Bilinear,
    Cast,
    Input,
    Node,
    Opaque,
    Place,
    Pool,
    Structural,
)
from secateurs.graph.propagate import Evaluate, Flow, evaluate, propagate
from secateurs.graph.quantized import dequantized
from secateurs.graph.sources import Computed, Named, Source, State

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
