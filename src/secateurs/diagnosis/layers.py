"""What a diagnosis of weights says of each layer, and all of it as a table."""

from dataclasses import asdict, dataclass
from typing import Any

from secateurs.diagnosis.roles import Kind
from secateurs.diagnosis.verdicts import Verdict


@dataclass(frozen=True, kw_only=True)
class Moments:
    """The moments of a layer's entries, and the scales that the theorems ask for.

    * `k`: K of the fitted uniform ±K/√max(fans), from the variance.
    * `k1`, `k2`: E w² · max and E w⁴ · max².
    * `c1`, `c2`, of convolutions: d·E w² and d²·E w⁴, so that C1 = c1·p², C2 = c2·p⁴ on p×p maps.
    """

    mean: float
    variance: float
    kurtosis: float
    k: float
    k1: float
    k2: float
    c1: float | None
    c2: float | None


@dataclass(frozen=True, kw_only=True)
class Fit:
    """How far the entries are from what the theorems assume, free of scale.

    * `mean_z`: the mean in standard errors; `bias_ratio`: |mean| over the standard deviation.
    * `ks_normal`, `ks_uniform`: Kolmogorov–Smirnov distances to the fitted laws.
    * `carried`: the share of the largest entry in the sum of fourth powers.
    """

    mean_z: float
    bias_ratio: float
    ks_normal: float
    ks_uniform: float
    carried: float


@dataclass(frozen=True, kw_only=True)
class LayerDiagnosis(Moments, Fit, Verdict):
    """One layer: its moments, its fit and the verdict on Theorems 1, 2 and 3.

    * `kind`: linear layers may ask Theorems 1 and 2, convolutions the third; "other" weights
      (recurrent, attention, bilinear) are no layers of a chain.
    * `edges`, `counts`: the histogram of the entries.
    """

    name: str
    shape: tuple[int, ...]
    kind: Kind
    pruned_share: float
    edges: tuple[float, ...]
    counts: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """All layers; `str(diagnosis)` is a table, `rows()` plain data for JSON."""

    layers: tuple[LayerDiagnosis, ...]

    def rows(self) -> list[dict[str, Any]]:
        """One dictionary per layer."""
        return [asdict(layer) for layer in self.layers]

    def __str__(self) -> str:
        head = (
            f"{'layer':24} {'mean':>9} {'variance':>9} {'kurt.':>6} {'KS norm':>8} {'KS unif':>8} "
            " assumptions"
        )
        return "\n".join([head, *(_line(layer) for layer in self.layers)])


def _line(layer: LayerDiagnosis) -> str:
    verdicts = (
        ("magnitude (Thm 1)", layer.magnitude),
        ("random (Thm 2)", layer.random),
        ("filters (Thm 3)", layer.filters),
    )
    holds = ", ".join(name for name, good in verdicts if good)
    return (
        f"{layer.name[:24]:24} {layer.mean:9.2e} {layer.variance:9.2e} {layer.kurtosis:6.2f}"
        f" {layer.ks_normal:8.3f} {layer.ks_uniform:8.3f}  {holds or 'none'};"
        f" {'; '.join(layer.notes)}"
    )
