"""The schemes `plan` can ask about: which theorem speaks, what it removes, what print says."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from secateurs.errors import ArgumentError
from secateurs.theory.guarantee import Guarantee, Needed
from secateurs.theory.planning.by_drawing import (
    drawn,
    drawn_limit,
    drawn_needed,
    drawn_printed,
    positions_drawn,
)
from secateurs.theory.planning.by_filters import (
    filters_by_norm,
    filters_drawn,
    filters_limit,
)
from secateurs.theory.planning.by_magnitude import (
    across_layers,
    magnitude,
    magnitude_needed,
    magnitude_printed,
)
from secateurs.theory.planning.scheme import Scheme, Setting, positions_cut
from secateurs.theory.planning.search import Part


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A scheme put to one network."""

    scheme: Scheme
    setting: Setting

    def promise(self, widths: Sequence[int], alpha: float, delta: float) -> Guarantee:
        """The explicit guarantee at these widths."""
        return self.scheme.guarantee(self.setting, widths, alpha, delta)

    def shares(self, widths: Sequence[int], alpha: float) -> list[Part]:
        """What each pruned layer loses."""
        return self.scheme.shares(self.setting, widths, alpha)

    def printed(self, alpha: float, delta: float) -> Guarantee | None:
        """What print says of the same."""
        return self.scheme.printed(self.setting, alpha, delta)

    def needed(self, alpha: float, epsilon: float, delta: float) -> Needed | None:
        """The widths that print asks for."""
        return self.scheme.needed(self.setting, alpha, epsilon, delta)

    @property
    def limit(self) -> float:
        """The largest α that print's conditions allow."""
        return self.scheme.limit(self.setting)


def asked(name: str, setting: Setting) -> Asked:
    """The scheme of this name: linear chains take those of entries, convolutions those of
    filters."""
    scheme = SCHEMES.get(name)
    # A scheme of entries says nothing of filters, and the other way round.
    if scheme is None or scheme.filters != bool(setting.chain.taps):
        kind = [
            n for n, s in SCHEMES.items() if s.filters == bool(setting.chain.taps)
        ]
        raise ArgumentError(
            f"scheme = {name!r}: this network has {'' if setting.chain.taps else 'no '}"
            f"convolutions; for it give one of {', '.join(map(repr, kind))}. (Widths with kernel="
            " and input_size= stand for convolutions.)"
        )
    return Asked(scheme=scheme, setting=setting)


SCHEMES: dict[str, Scheme] = {
    "magnitude": Scheme(
        guarantee=magnitude,
        shares=partial(positions_cut, 1.0),
        printed=magnitude_printed,
        needed=magnitude_needed,
    ),
    "global": Scheme(guarantee=across_layers, shares=partial(positions_cut, 1.0)),
    "random": Scheme(
        guarantee=partial(drawn, True),
        shares=partial(positions_drawn, 1.0),
        printed=drawn_printed,
        needed=drawn_needed,
        limit=drawn_limit,
    ),
    "random-without": Scheme(
        guarantee=partial(drawn, False), shares=partial(positions_cut, 1.0)
    ),
    "filters": Scheme(
        guarantee=partial(filters_drawn, True),
        shares=partial(positions_drawn, 0.5),
        limit=filters_limit,
        filters=True,
    ),
    "filters-without": Scheme(
        guarantee=partial(filters_drawn, False),
        shares=partial(positions_cut, 0.5),
        filters=True,
    ),
    "filters-magnitude": Scheme(
        guarantee=filters_by_norm, shares=partial(positions_cut, 0.5), filters=True
    ),
}
"""Print has statements for "magnitude" and "random"; for filters it has two free exponents and one
channel count, so that there is no one statement to compare with."""
