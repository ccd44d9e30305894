"""Which assumptions of Theorems 1 to 3 a layer's entries meet, and the numbers of those that
fail.
"""

from dataclasses import dataclass

from secateurs.diagnosis.entries import FEW, HEAVY, Entries
from secateurs.diagnosis.roles import Role


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
