"""Which assumptions of Theorems 1 to 3 a layer's entries meet, and the numbers of those that
fail.
"""

import math
from dataclasses import dataclass

from secateurs.diagnosis.roles import Role

CLOSE = 0.02
"""A Kolmogorov–Smirnov distance up to this counts as "close". (With 10^6 weights every exact test
rejects: the distance says how far, the p-value only how sure.)
"""
HEAVY = 144.0
"""K2/K1² from which K2^¼ > 2√(3 K1) in c2 = C(2√(3 K1) + K2^¼) of Theorem 2: the tails decide the
bound.
"""
CARRIED = 0.25
"""The largest entry's share of Σ w⁴ from which the estimate of E w⁴ is that entry's. (Of 200
samples of 8,192 entries it finds 95 % for Student's t with 2.1 degrees of freedom, where E w⁴ is
infinite, and none for normal ones.)
"""
MANY, FEW = 1_000, 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Entries:
    """The figures the assumptions are about, free of scale. `heavy` = E w⁴/(E w²)²."""

    count: int
    varied: bool
    mean_ratio: float
    heavy: float
    carried: float
    ks_normal: float
    ks_uniform: float

    @property
    def uniform(self) -> bool:
        """Close, or not distinguishable at the 0.1 % level (1.95/√n)."""
        return self.ks_uniform <= self.critical

    @property
    def critical(self) -> float:
        # With few entries chance alone makes a distance of 1.95/√n once in a thousand.
        return max(CLOSE, 1.95 / math.sqrt(self.count))

    @property
    def centred(self) -> bool:
        """A mean of at most a twentieth of the deviation, or within four standard errors of
        zero.
        """
        return self.mean_ratio <= self.mean_limit

    @property
    def mean_limit(self) -> float:
        # Four standard errors: a mean that chance explains is no reason to refuse.
        return max(0.05, 4 / math.sqrt(self.count))

    @property
    def tame(self) -> bool:
        """A fourth moment that is there, and not so large that it decides the bound."""
        # Of few entries one always carries much of Σ w⁴: that share says nothing then.
        return self.heavy <= HEAVY and (self.count < MANY or self.carried <= CARRIED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Which of Theorems 1, 2 and 3 may be asked about this layer; what fails, in words."""

    magnitude: bool
    random: bool
    filters: bool
    notes: tuple[str, ...]


def judge(entries: Entries, role: Role, scales: tuple[float, float]) -> Verdict:
    """`scales`: d E w² and d² E w⁴, the C1/p² and C2/p⁴ of Theorem 3."""
    if not entries.varied:
        return Verdict(
            magnitude=False,
            random=False,
            filters=False,
            notes=("all entries are equal: no theorem applies",),
        )
    moments = entries.centred and entries.tame
    notes = [_nearer(entries)]
    if role.kind == "other":
        notes.append(f"of a {role.what}: no layer of a chain, no theorem applies")
    else:
        notes += [
            *_failures(entries, role),
            *(_filters(role, scales) if role.kind == "convolution" else ()),
        ]
    return Verdict(
        # Theorem 1 speaks of uniform entries, which have all moments; the others need
        # them.
        magnitude=role.kind == "linear" and entries.uniform and entries.centred,
        random=role.kind == "linear" and moments,
        filters=role.kind == "convolution" and moments and not role.misfits,
        notes=tuple(notes),
    )


def _nearer(entries: Entries) -> str:
    near, far = sorted((entries.ks_normal, entries.ks_uniform))
    nearer = "normal" if entries.ks_normal < entries.ks_uniform else "uniform"
    return f"nearer to {nearer} (KS {near:.3f} against {far:.3f})"


def _failures(entries: Entries, role: Role) -> list[str]:
    theorem = "Theorem 2" if role.kind == "linear" else "Theorem 3"
    notes = []
    if role.kind == "linear" and not entries.uniform:
        notes.append(
            f"Theorem 1 does not apply: KS to uniform {entries.ks_uniform:.3f} >"
            f" {entries.critical:.3f}"
        )
    if not entries.centred:
        notes.append(
            f"mean is {entries.mean_ratio:.2f} deviations from zero (more than"
            f" {entries.mean_limit:.2f}), Theorems 1-3 assume zero"
        )
    if not entries.tame:
        notes.append(
            f"{theorem} does not apply: no fourth moment to rely on, E w^4 = {entries.heavy:.3g} (E"
            f" w^2)^2 (at most {HEAVY:g}), {100 * entries.carried:.0f} % of it one entry's"
        )
    if entries.count < FEW:
        notes.append(
            f"only {entries.count} entries: they would pass for almost any law"
        )
    return notes


def _filters(role: Role, scales: tuple[float, float]) -> list[str]:
    notes = [
        f"Theorem 3's C1 = {scales[0]:.3g} p^2, C2 = {scales[1]:.3g} p^4 on maps of p x p"
    ]
    if role.misfits:
        explicit = (
            " (its explicit form does: plan(scheme='filters', law='bounded'))"
            if role.explicit
            else ""
        )
        notes.append(
            f"Theorem 3 as stated does not apply: {', '.join(role.misfits)}{explicit}"
        )
    elif role.unseen:
        notes.append(f"if it has {role.unseen}, which a checkpoint does not tell")
    return notes
