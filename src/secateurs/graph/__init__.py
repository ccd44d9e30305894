"""Models as graphs of six primitives: capture once, analyse many times."""

from secateurs.graph.capture import Example, capture
from secateurs.graph.ir import (
    Activation,
    Add,
    Affine,
    Axes,
    Bilinear,
    Graph,
    Input,
    Node,
    Place,
    Pool,
    Structural,
    affines,
    same_structure,
)
from secateurs.graph.lower import LOWERINGS, Builder, Gap, Value, lowers
from secateurs.graph.propagate import Evaluate, Flow, evaluate, propagate
from secateurs.graph.sources import Computed, Named, Source, State

__all__ = [
    "LOWERINGS",
    "Activation",
    "Add",
    "Affine",
    "Axes",
    "Bilinear",
    "Builder",
    "Computed",
    "Evaluate",
    "Example",
    "Flow",
    "Gap",
    "Graph",
    "Input",
    "Named",
    "Node",
    "Place",
    "Pool",
    "Source",
    "State",
    "Structural",
    "Value",
    "affines",
    "capture",
    "evaluate",
    "lowers",
    "propagate",
    "same_structure",
]
