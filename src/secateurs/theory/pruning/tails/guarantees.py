"""The bound of Theorems 2 and 3 for a chain of random layers, and what it assumes in words."""

from collections.abc import Sequence
from dataclasses import replace

from secateurs.theory.checks import check_unit
from secateurs.theory.guarantee import Guarantee
from secateurs.theory.pruning.error_propagation import Between, Links, telescope
from secateurs.theory.pruning.masked_norms import masked_norm_bound
from secateurs.theory.pruning.tails.layer import Law, RandomLayer

CIRCULAR_SETTING = (
    "circular padding, no biases, activations Lipschitz with σ(0) = 0, ‖x‖₂ ≤ p0√d0"
)
_ENTRIES = {
    "uniform": "entries of every layer iid uniform on ",
    "bounded": "entries of every layer independent, of mean zero, not necessarily alike, within ",
    "normal": "entries of every layer independent normal, of mean zero, standard deviation up to ",
    "subgaussian": "entries of every layer independent, symmetric, sub-Gaussian with the root of "
    "the proxy up to ",
}


def entries_text(law: str, unit: str) -> str:
    """What is assumed of the entries, in words; `unit` is written as a range ±…"""
    ranged = law in ("uniform", "bounded")
    return _ENTRIES[law] + (unit if ranged else unit.removeprefix("±"))


def random_guarantee(
    layers: Sequence[RandomLayer],
    draws: Sequence[int],
    *,
    delta: float,
    reach: float,
    theorem: str,
    entries: str,
    setting: str,
    law: Law = "uniform",
    between: Sequence[Between] | None = None,
    replacement: bool = True,
) -> Guarantee:
    """The bound of this module for a chain of random layers of which the inner ones lose `draws`
    positions.

    `reach` is L_{1:l−1} times the largest ‖x‖; `entries` and `setting` are named among the
    assumptions. In the result, `trivial` = reach · Π N_j.
    """
    check_unit(delta=delta)
    share = delta / (3 * len(draws))  # 3(l−2) events, see above
    links = [_link(layer, share, law) for layer in layers]
    for k, (layer, count) in enumerate(
        zip(layers[1:-1], draws, strict=True), start=1
    ):
        change = masked_norm_bound(
            layer, draws=count, failure=share, law=law, replacement=replacement
        )
        # η_k always; N_k of the whole but for k = l−1, of what is kept but for k = 2.
        events = 1 + (k < len(draws)) + (k > 1)
        links[k] = replace(
            links[k], change=change, removed=count, failure=events * share
        )
    widths = [layers[0].columns, *(layer.rows for layer in layers)]
    bounds, trivial = telescope(widths, links, between, reach)
    return Guarantee(
        theorem=theorem,
        error=sum(bound.contribution for bound in bounds),
        probability=1 - delta,
        trivial=trivial,
        assumptions=(entries_text(law, entries), setting),
        layers=bounds,
    )


def _link(layer: RandomLayer, share: float, law: Law) -> Links:
    norm = masked_norm_bound(layer, failure=share, law=law)
    return Links(norm=norm, kept=norm, failure=share)
