"""A table from keys to rules: register by decorator, look up with a helpful miss."""

import inspect
import sys
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from difflib import get_close_matches
from importlib import import_module
from typing import Generic, TypeVar

from secateurs.errors import ArgumentError, UnknownNameError

Rule = TypeVar("Rule")

LISTED = 40
"""How many known names a message lists at most: a model has hundreds."""


class Registry(Generic[Rule]):
    """Rules of one kind, by key. Keys compare by equality; nothing is matched by substring.

    >>> greetings: Registry[str] = Registry("greeting")
    >>> _ = greetings.register("hello")("Hello!")
    >>> greetings["hello"]
    'Hello!'
    >>> greetings["helo"]
    Traceback (most recent call last):
        ...
    secateurs.errors.UnknownNameError: ... Did you mean 'hello'? Known: hello.
    """

    def __init__(self, kind: str, *, homes: Mapping[str, str] | None = None) -> None:
        self.kind = kind
        self._rules: dict[Hashable, Rule] = {}
        # Modules that register a key when it is first asked for: one need not load all of them.
        self._homes = homes or {}

    def register(self, *keys: Hashable) -> Callable[[Rule], Rule]:
        """Decorator: file the rule under each key. A key is given once."""

        def decorate(rule: Rule) -> Rule:
            # All keys are checked before the first is filed.
            for key in keys:
                if key in self._rules or self._is_unopened(key):
                    raise ArgumentError(
                        f"the {self.kind} {key!r} is already registered; choose another name."
                    )
            self._rules.update(dict.fromkeys(keys, rule))
            return rule

        return decorate

    def _is_unopened(self, key: Hashable) -> bool:
        """Whether the module that registers this key has not been imported yet."""
        return key in self._homes and self._homes[str(key)] not in sys.modules

    def __getitem__(self, key: Hashable) -> Rule:
        if key in self._homes and key not in self._rules:
            import_module(self._homes[str(key)])
        try:
            return self._rules[key]
        except KeyError:
            raise UnknownNameError(unknown(self.kind, key, self.names())) from None

    def check(self, key: object) -> None:
        """Refuse a key that is not registered, or that cannot be a key, such as a list."""
        try:
            known = key in self
        except TypeError:
            known = False
        if not known:
            raise UnknownNameError(unknown(self.kind, key, self.names()))

    def __contains__(self, key: Hashable) -> bool:
        return key in self._rules or key in self._homes

    def __iter__(self) -> Iterator[Hashable]:
        return iter(dict.fromkeys([*self._homes, *self._rules]))

    def names(self) -> list[str]:
        """The keys as text: those with a home, then in order of registration."""
        return [str(key) for key in self]


def unknown(kind: str, key: object, known: Iterable[str]) -> str:
    """The sentence for a miss: what was asked, the nearest names, all names."""
    names = list(known)
    near = get_close_matches(str(key), names, n=3, cutoff=0.5)
    suggestion = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
    listed = ", ".join(names[:LISTED]) + (
        f", ... ({len(names)} in all)" if len(names) > LISTED else ""
    )
    return f"there is no {kind} {key!r}.{suggestion} Known: {listed}."


def refuse_unknown(
    function: Callable[..., object], given: Iterable[str], taken: Iterable[str]
) -> None:
    """Refuse keywords that a function takes by `**` and does not know.

    The nearest names are looked for among all keywords of the function, its own ones, too.
    """
    taken = list(taken)
    strange = [name for name in given if name not in taken]
    if not strange:
        return
    own = [
        name
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    ]
    kind = f"keyword of {function.__name__}"
    raise UnknownNameError("; ".join(unknown(kind, name, [*taken, *own]) for name in strange))
