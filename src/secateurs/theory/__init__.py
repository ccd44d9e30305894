"""What theory promises a pruned network: one function for each statement of two papers, and tools
to ask them.

* Qian & Klabjan, "A Probabilistic Approach to Neural Network Pruning" (ICML 2021): Lemmas 1–7,
  Theorems 1–4, appendices C.1, C.2, E.2, E.3.
* Bar & Giryes, "Pruning at Initialization — A Sketching Perspective" (2023): Lemmas B.1, B.2,
  4.1–4.5, Theorems 4.4, 7.2.

The corrected form is the default; `as_printed=True` gives the printed one (docs/errata.md).
"""

from secateurs.theory.guarantee import Condition, Guarantee, LayerBound, Needed
from secateurs.theory.operator_norms.bracket import OperatorNorm
from secateurs.theory.operator_norms.circular import lemma_7
from secateurs.theory.operator_norms.convolution import conv_operator_norm
from secateurs.theory.operator_norms.matrices import SpectralNorms, spectral_norms
from secateurs.theory.planning.plan import plan
from secateurs.theory.planning.report import Plan, PlannedLayer
from secateurs.theory.pruning.concentration import (
    NormConstants,
    lemma_3,
    uniform_norm_bound,
)
from secateurs.theory.pruning.error_propagation import Between
from secateurs.theory.pruning.lemma_2 import lemma_2
from secateurs.theory.pruning.masked_norms import masked_norm_bound
from secateurs.theory.pruning.order_statistics import Moments, lemma_1
from secateurs.theory.pruning.tails.bins import fullest_bin, lemma_5, lemma_6
from secateurs.theory.pruning.tails.conv_setting import ConvSetting
from secateurs.theory.pruning.tails.latala import (
    LATALA_CONSTANT,
    LATALA_MEASURED,
    lemma_4,
)
from secateurs.theory.pruning.tails.layer import RandomLayer
from secateurs.theory.pruning.theorem_1 import theorem_1, theorem_1_width
from secateurs.theory.pruning.theorem_1_explicit import theorem_1_explicit
from secateurs.theory.pruning.theorem_1_global import theorem_1_global
from secateurs.theory.pruning.theorem_2 import NormBounds, theorem_2
from secateurs.theory.pruning.theorem_2_width import theorem_2_width
from secateurs.theory.pruning.theorem_3 import theorem_3
from secateurs.theory.pruning.theorem_3_magnitude import theorem_3_magnitude
from secateurs.theory.pruning.theorem_4 import exact_order_statistic, theorem_4
from secateurs.theory.pruning.theorems_2_and_3_explicit import (
    theorem_2_explicit,
    theorem_3_explicit,
)
from secateurs.theory.sketching.errors import SketchError, sketch_error
from secateurs.theory.sketching.gaussian import lemma_42, lemma_45, theorem_44
from secateurs.theory.sketching.lemmas import (
    lemma_41,
    lemma_43,
    lemma_b1,
    lemma_b2,
    sketch_probabilities,
)
from secateurs.theory.sketching.masks import SKETCHES, leverage_scores, sketch_mask
from secateurs.theory.sketching.ntk import NtkSketch, ntk_sketch
from secateurs.theory.sketching.theorem_72 import NtkConstants, theorem_72

__all__ = [
    "LATALA_CONSTANT",
    "LATALA_MEASURED",
    "SKETCHES",
    "Between",
    "Condition",
    "ConvSetting",
    "Guarantee",
    "LayerBound",
    "Moments",
    "Needed",
    "NormBounds",
    "NormConstants",
    "NtkConstants",
    "NtkSketch",
    "OperatorNorm",
    "Plan",
    "PlannedLayer",
    "RandomLayer",
    "SketchError",
    "SpectralNorms",
    "conv_operator_norm",
    "exact_order_statistic",
    "fullest_bin",
    "lemma_1",
    "lemma_2",
    "lemma_3",
    "lemma_4",
    "lemma_5",
    "lemma_6",
    "lemma_7",
    "lemma_41",
    "lemma_42",
    "lemma_43",
    "lemma_45",
    "lemma_b1",
    "lemma_b2",
    "leverage_scores",
    "masked_norm_bound",
    "ntk_sketch",
    "plan",
    "sketch_error",
    "sketch_mask",
    "sketch_probabilities",
    "spectral_norms",
    "theorem_1",
    "theorem_1_explicit",
    "theorem_1_global",
    "theorem_1_width",
    "theorem_2",
    "theorem_2_explicit",
    "theorem_2_width",
    "theorem_3",
    "theorem_3_explicit",
    "theorem_3_magnitude",
    "theorem_4",
    "theorem_44",
    "theorem_72",
    "uniform_norm_bound",
]
