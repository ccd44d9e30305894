"""What theory promises a pruned network: one function for each statement of two papers, and tools
to ask them.

* Qian & Klabjan, "A Probabilistic Approach to Neural Network Pruning" (ICML 2021): Lemmas 1–7,
  Theorems 1–4, appendices C.1, C.2, E.2, E.3.
* Bar & Giryes, "Pruning at Initialization — A Sketching Perspective" (2023): Lemmas B.1, B.2,
  4.1–4.5, Theorems 4.4, 7.2.

The corrected form is the default; `as_printed=True` gives the printed one (docs/errata.md).
"""

from typing import TYPE_CHECKING

from secateurs.base.lazy import open_on_first_use

if TYPE_CHECKING:
    from secateurs.theory.circular_norms import lemma_7
    from secateurs.theory.convolutions import OperatorNorm
    from secateurs.theory.description import DescriptionLength, description_length
    from secateurs.theory.diagnose import Diagnosis, LayerDiagnosis, diagnose
    from secateurs.theory.generalization import (
        GeneralizationBound,
        GeneralizationBounds,
        generalization_bounds,
    )
    from secateurs.theory.guarantee import Between, Condition, Guarantee, LayerBound, Needed
    from secateurs.theory.magnitude import (
        OrderMoments,
        exact_order_statistic,
        lemma_1,
        theorem_1,
        theorem_1_explicit,
        theorem_1_global,
        theorem_1_width,
        theorem_4,
    )
    from secateurs.theory.measure import LayerChange, PruningMeasurement, measure_pruning
    from secateurs.theory.operator_norms import conv_operator_norm
    from secateurs.theory.plan import Plan, PlannedLayer, plan
    from secateurs.theory.random_matrices import (
        LATALA_CONSTANT,
        LATALA_MEASURED,
        NormConstants,
        RandomLayer,
        fullest_bin,
        lemma_2,
        lemma_3,
        lemma_4,
        lemma_5,
        lemma_6,
        masked_norm_bound,
        uniform_norm_bound,
    )
    from secateurs.theory.random_pruning import (
        ConvSetting,
        NormBounds,
        theorem_2,
        theorem_2_explicit,
        theorem_2_width,
        theorem_3,
        theorem_3_explicit,
        theorem_3_magnitude,
    )
    from secateurs.theory.sketch_masks import SKETCHES, leverage_scores, sketch_mask
    from secateurs.theory.sketching import (
        SketchError,
        lemma_41,
        lemma_42,
        lemma_43,
        lemma_45,
        lemma_b1,
        lemma_b2,
        sketch_error,
        sketch_probabilities,
        theorem_44,
    )
    from secateurs.theory.tangent_kernel import NtkConstants, NtkSketch, ntk_sketch, theorem_72

__all__ = [
    "LATALA_CONSTANT",
    "LATALA_MEASURED",
    "SKETCHES",
    "Between",
    "Condition",
    "ConvSetting",
    "DescriptionLength",
    "Diagnosis",
    "GeneralizationBound",
    "GeneralizationBounds",
    "Guarantee",
    "LayerBound",
    "LayerChange",
    "LayerDiagnosis",
    "Needed",
    "NormBounds",
    "NormConstants",
    "NtkConstants",
    "NtkSketch",
    "OperatorNorm",
    "OrderMoments",
    "Plan",
    "PlannedLayer",
    "PruningMeasurement",
    "RandomLayer",
    "SketchError",
    "conv_operator_norm",
    "description_length",
    "diagnose",
    "exact_order_statistic",
    "fullest_bin",
    "generalization_bounds",
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
    "measure_pruning",
    "ntk_sketch",
    "plan",
    "sketch_error",
    "sketch_mask",
    "sketch_probabilities",
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

open_on_first_use(__name__)
