"""What all methods have: a label, a training of their own, one run or several.

A method of one run has one `strength`; in a study it may be a list, which is tried one by one.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar

from secateurs.registry import Registry
from secateurs.study.settings.checks import each, maybe, number, step, text
from secateurs.study.settings.options import Problem, misfits, option, refuse
from secateurs.study.settings.training import overrides

METHODS: Registry[type["Method"]] = Registry("method")
"""Kinds of methods by name. A new kind is a frozen subclass of `Method` and its stages in
`study.pipeline.trainers`.
"""

positive = number(0.0, above=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """What all methods have.

    Attributes:
        label: The name in tables and figures; by default made from the settings. It is no part of a
        run's key.
        train: Fields of the study's training that differ for this method.
    """

    kind: ClassVar[str] = ""
    by_compression: ClassVar[bool] = False
    """Whether a run of this method is asked for a compression."""
    usual: ClassVar[Mapping[str, Any]] = {}
    """Fields of the training that this kind sets, before `train` does."""

    label: str = option("", maybe(lambda value: text(value) if value else ""))
    train: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # Lists are written in TOML and by hand; a frozen value holds tuples.
        for entry in fields(self):
            if isinstance(getattr(self, entry.name), list):
                object.__setattr__(self, entry.name, tuple(getattr(self, entry.name)))
        refuse(f"the method {self.kind!r}", self.problems())

    def problems(self) -> list[Problem]:
        """Everything wrong with these settings."""
        return [
            *misfits(self),
            *(p.inside("train") for p in overrides(self.train)),
            *self.conflicts(),
        ]

    def conflicts(self) -> list[Problem]:
        """Settings that exclude each other."""
        return []

    def single(self) -> "Iterator[Method]":
        """The methods of single runs: a list of strengths one by one."""
        strength = getattr(self, "strength", None)
        if not isinstance(strength, tuple):
            yield self
            return
        yield from (replace(self, strength=value) for value in strength)  # type: ignore[call-arg]

    @property
    def title(self) -> str:
        """The label, or one made from the settings that are not the usual ones."""
        return self.label or self.described()

    def described(self) -> str:
        """The kind, and what is special about it."""
        return self.kind


@METHODS.register("dense")
@dataclass(frozen=True, slots=True, kw_only=True)
class Dense(Method):
    """Ordinary training. Every study has it: the others are compared with it, and many begin at its
    end.

    `until` stops early, as if interrupted: the network that iterative pruning rewinds to.
    """

    kind: ClassVar[str] = "dense"
    until: str | None = option(None, maybe(step))

    def described(self) -> str:
        """dense, and where it stops."""
        return "dense" if self.until is None else f"dense until {self.until}"


def strengths(value: Any) -> str:
    """A number above 0, or a list of them."""
    return positive(value) if not isinstance(value, tuple) else each(positive)(value)


def after_what(value: Any) -> str:
    """The network a method begins with: fresh, trained, or another method's."""
    # One method begins with one network; which of the list would be a guess.
    if isinstance(value, Method) and isinstance(
        getattr(value, "strength", None), tuple
    ):
        return (
            f"{value.kind} has a list of strengths here: give one, "
            "and write a method for each"
        )
    if isinstance(value, Method) or value in ("init", "dense"):
        return ""
    return f"{value!r} is neither 'init', 'dense' nor another method"
