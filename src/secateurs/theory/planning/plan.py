"""How much can be pruned? The theorems of Qian & Klabjan (2021), asked as a user asks them."""

from collections.abc import Sequence

from torch import nn

from secateurs.theory.checks import check_positive, check_unit, check_widths
from secateurs.theory.planning.chains.reading import read_chain
from secateurs.theory.planning.report import Plan
from secateurs.theory.planning.scheme import SchemeName
from secateurs.theory.planning.schemes import asked
from secateurs.theory.planning.search import (
    exponent_for,
    good_enough,
    probability_of,
    smallest_alpha,
    smallest_width,
    total_share,
)
from secateurs.theory.planning.setting import setting_of_chain
from secateurs.theory.planning.telling import (
    binding_of,
    misfits_of,
    needed_widths,
    planned_layers,
)
from secateurs.theory.pruning.tails.latala import LATALA_CONSTANT
from secateurs.theory.pruning.tails.layer import Law


def plan(
    model_or_widths: nn.Module | Sequence[int],
    *,
    sparsity: float | None = None,
    alpha: float | None = None,
    epsilon: float | None = None,
    delta: float = 0.05,
    scheme: SchemeName = "magnitude",
    scale: float | None = None,
    lipschitz: float | None = None,
    constant: float = LATALA_CONSTANT,
    input_size: int | Sequence[int] | None = None,
    law: Law | None = None,
    kernel: int | None = None,
) -> Plan:
    """The guarantee for pruning the inner layers of a network, and what would be needed for more.

    Give `alpha` (each inner layer loses ⌊D^{1−α}⌋ of its D entries) or the `sparsity` of the inner
    layers (as much of it as whole entries allow). `scale` is K of the entries' range ±K/√max(d_k,
    d_{k−1}), 1 for widths; `lipschitz` is the product of the Lipschitz constants of the
    activations, 1 for widths.

    A model must be one chain of layers: an nn.Sequential, or any module whose captured graph is a
    single path. Biases, batch norms and activations with σ(0) ≠ 0 or larger constants are read off
    it and enter the bound (`error_propagation`); everything else is refused by name. `law` says
    what is assumed of the entries:

    * "uniform", the default for widths, with the K of the largest entry;
    * "bounded", the default for a model: no more than independent entries of mean zero in that
      range (for magnitude pruning fair signs independent of the magnitudes, which are looked up);
    * "normal", where K/√max is the standard deviation, and "subgaussian", where it is the root of
      the variance proxy (for a model K comes from the root mean square of the entries).

    Where the model's entries speak against it, `misfits` says so. The schemes:

    * "magnitude" (`theorem_1_explicit`): the smallest entries of each inner layer; "global"
      (`theorem_1_global`): as many of all inner layers together;
    * "random" (`theorem_2_explicit`): that many positions drawn with replacement;
      "random-without": drawn without;
    * for convolutions with linear layers behind them and `input_size` (height and width),
      "filters" (`theorem_3_explicit`): ⌊D^{1−α/2}⌋ of D filters of each inner convolution are drawn
      with replacement, "filters-without": without, "filters-magnitude": those of smallest ℓ¹ norm
      (`theorem_3_magnitude`). The range is ±K/(q√max(d_k, d_{k−1})); zero padding and strides are
      covered by the circular convolution on the padded map. Linear layers lose nothing.

    Widths with a `kernel` and `input_size` stand for circular convolutions that keep their maps, of
    d_0 … d_{l−1} channels, and a linear layer. No unknown constant enters; `constant` (Lemma 4's C)
    is used for what print says.

    >>> print(plan([784, 1024, 1024, 10], alpha=0.5, delta=0.01))
    magnitude pruning of 1 inner layer(s), widths 784-1024-1024-10, alpha = 0.5 (0.0977 % of the
    inner weights).
    ...
    """
    chain = read_chain(model_or_widths, input_size, kernel)
    check_widths(chain.widths)
    check_positive(
        constant=constant, **({} if epsilon is None else {"epsilon": epsilon})
    )
    check_unit(delta=delta)
    setting = setting_of_chain(chain, scale, lipschitz, constant, law)
    theorem = asked(scheme, setting)
    exponent = exponent_for(theorem.shares, chain.widths, alpha, sparsity)
    # First the question itself; the searches below ask the same at other sizes.
    here = theorem.promise(chain.widths, exponent, delta)
    layers = planned_layers(chain, here, theorem.shares(chain.widths, exponent))
    reaches = good_enough(theorem.promise, delta, epsilon)
    most = smallest_alpha(reaches, chain.widths)
    printed = theorem.printed(exponent, delta)
    return Plan(
        scheme=scheme,
        widths=chain.widths,
        alpha=exponent,
        sparsity=total_share(theorem.shares, chain.widths, exponent),
        delta=delta,
        epsilon=epsilon,
        law=setting.law,
        error=here.error,
        trivial=here.trivial,
        layers=layers,
        probability=(
            None
            if epsilon is None
            else probability_of(theorem.promise, chain.widths, exponent, epsilon)
        ),
        smallest_width=smallest_width(reaches, chain.widths, exponent),
        smallest_alpha=most,
        most_sparsity=None
        if most is None
        else total_share(theorem.shares, chain.widths, most),
        largest_alpha=theorem.limit,
        binding=binding_of(here, epsilon, layers),
        vacuous=here.vacuous,
        printed=printed,
        needed=needed_widths(theorem, printed, exponent, epsilon, delta),
        assumptions=here.assumptions,
        misfits=misfits_of(chain, setting.law),
    )
