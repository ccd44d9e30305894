"""Reads VNN-LIB: the questions of the verification competition that are about two networks.

Version 2.0 declares two networks, f and g, a box of inputs that both are given, and when a point
counts as a counterexample: that some output of g is further than ε from the same output of f.
Version 1 knows one network; of it the box is read, and ε has to be given beside it.

A published family of instances writes `(and (> Y_g (+ Y_f ε)) (< Y_g (- Y_f ε)))` for each output
where `or` is meant: as written no point can be a counterexample. Such a file is read as it is
meant, and `Question.remark` says so.
"""

import math
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import TypeAlias

from secateurs.errors import DataError

_MOST_BYTES = 2**26
_MOST_ENTRIES = 2**24
_DEEPEST = 64
_DECIMAL = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE]([+-]?\d{1,9}))?", re.ASCII)
_LONGEST_NUMBER = 1000
_LARGEST_EXPONENT = 1000
_VARIABLE = re.compile(r"([A-Za-z_][A-Za-z0-9_]*?)(?:_(\d{1,9})|\[(\d{1,9}(?:,\d{1,9})*)\])")


@dataclass(frozen=True, slots=True)
class _Word:
    """A word of the file, with its line."""

    text: str
    line: int


_Term: TypeAlias = "_Word | list[_Term]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Is |g(x) − f(x)| ≤ epsilon in every output, for all lo ≤ x ≤ hi?

    Attributes:
        lo, hi: The ends of the box, in the order of the flat input.
        epsilon: None where the file does not say (version 1).
        names: What the file calls inputs and outputs: x, the output of f, the output of g.
        remark: What was read differently from what the file says, or not at all; "" if nothing was.
        reached: Whether a difference of exactly epsilon is one too many: where the file says ">=",
            or a decimal below the nearest float64, which epsilon is.
        outputs: How many a network has; None where the file asks about one network (version 1).
        open_lo, open_hi: Entries whose end the box does not have: where the file says "<", or a
            decimal within the ends, which are the nearest float64 outside. A bound holds there as
            well; a counterexample may not lie there.
    """

    lo: tuple[float, ...]
    hi: tuple[float, ...]
    epsilon: float | None
    names: tuple[str, str, str]
    remark: str = ""
    reached: bool = False
    outputs: int | None = None
    open_lo: frozenset[int] = frozenset()
    open_hi: frozenset[int] = frozenset()


def float_beyond(value: Fraction, *, up: bool) -> float:
    """The nearest float64 that is not below a number, or not above it."""
    near = float(value)
    if (near < value) if up else (near > value):
        return math.nextafter(near, math.inf if up else -math.inf)
    return near


def read_vnnlib(path: str | Path) -> Question:
    """The question in a file; anything else is refused with its line."""
    path = Path(path)
    return _Reader(path).question(text_of(path))


def text_of(path: Path) -> str:
    """The text of a file, if it is one and not too long."""
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise DataError(
                f"{path} holds more than {_MOST_BYTES // 2**20} MB, the most that is read."
            )
        return path.read_text("utf-8")
    except UnicodeDecodeError as error:
        number = error.object[: error.start].count(b"\n") + 1
        raise DataError(f"{path}, line {number}: cannot be read as UTF-8.") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error}.") from None


def lines_of(text: str) -> list[str]:
    """The lines of a text. A comment ends where its line does, and not at a character that only
    some readers take for the end of one (U+2028, a form feed)."""
    return text.removesuffix("\n").split("\n")


@dataclass(frozen=True, slots=True)
class _Atom:
    """g[output] − f[output] > by for sign 1, < −by for sign −1; `reached`: or equal to it."""

    output: int
    sign: int
    by: Fraction
    reached: bool


@dataclass(slots=True)
class _Reader:
    path: Path
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    # Each end with whether the box does not have it.
    lo: dict[int, tuple[Fraction, bool]] = field(default_factory=dict)
    hi: dict[int, tuple[Fraction, bool]] = field(default_factory=dict)
    ignored: int | None = None
    """The line of the first condition on the outputs of one network."""
    shared: set[int] = field(default_factory=set)

    def question(self, text: str) -> Question:
        ends: list[list[_Atom]] = []
        kinds: set[str] = set()
        for term in self._terms(text):
            head = self._head(term)
            rest = term[1:] if isinstance(term, list) else []
            if head.text == "declare-network":
                self._network(rest, head)
            elif head.text == "declare-const":
                self._constant(rest, head)
            elif head.text == "assert" and len(rest) == 1:
                self._assertion(rest[0], head, ends, kinds)
            elif head.text != "vnnlib-version":
                raise self._wrong(head.line, f"{head.text!r} is not a known statement")
        return self._found(ends, kinds)

    def _found(self, ends: list[list[_Atom]], kinds: set[str]) -> Question:
        paired = len(self.inputs) == 2
        count = math.prod(self.shapes[self.inputs[0]]) if self.inputs else 0
        if not count:
            raise self._wrong(None, "no input is declared")
        open_ = [i for i in range(count) if i not in self.lo or i not in self.hi]
        if open_:
            raise self._wrong(None, f"input {open_[0]} of {count} has no lower or no upper bound")
        for i in range(count):
            (low, one), (high, other) = self.lo[i], self.hi[i]
            if low > high or (low == high and (one or other)):
                raise self._wrong(
                    None,
                    f"input {i} lies between {float(low):g} and {float(high):g}: an empty box",
                )
        # A decimal is hardly ever a float64: the box is the least that holds it.
        lo, hi = (
            tuple(float_beyond(side[i][0], up=up) for i in range(count))
            for side, up in ((self.lo, False), (self.hi, True))
        )
        open_lo, open_hi = (
            frozenset(i for i in range(count) if side[i][1] or side[i][0] != floats[i])
            for side, floats in ((self.lo, lo), (self.hi, hi))
        )
        if not paired:
            # The conditions on the outputs are another question, about one network.
            name = self.outputs[0] if self.outputs else "Y"
            return Question(
                lo=lo,
                hi=hi,
                epsilon=None,
                names=(self.inputs[0], name, name),
                remark=""
                if self.ignored is None
                else f"the conditions on outputs in the file (line {self.ignored}) are about one"
                " network and were not read: only its box was",
                open_lo=open_lo,
                open_hi=open_hi,
            )
        apart = [i for i in range(count) if i not in self.shared]
        if apart:
            raise self._wrong(
                None, f"the networks are not given the same input: nothing ties entry {apart[0]}"
            )
        outputs = math.prod(self.shapes[self.outputs[0]])
        atoms = [atom for end in ends for atom in end]
        by = {atom.by for atom in atoms}
        both = {(i, sign) for i in range(outputs) for sign in (1, -1)}
        if {(atom.output, atom.sign) for atom in atoms} != both or len(by) != 1:
            raise self._wrong(
                None,
                "the outputs are not asked whether each of them differs by more than one ε,"
                " which is the only question supported",
            )
        remark = ""
        if kinds == {"and"}:
            remark = (
                "as written, each output would have to be above and below at once, which no point"
                " can; read as 'or', as it is meant"
            )
        elif kinds != {"or"} or len(ends) > 1:
            raise self._wrong(None, "the conditions on the outputs are not one 'or' of all of them")
        names = (self.inputs[0], self.outputs[0], self.outputs[1])
        exact = by.pop()
        epsilon = float(exact)
        return Question(
            lo=lo,
            hi=hi,
            epsilon=epsilon,
            names=names,
            remark=remark,
            reached=exact < epsilon or (exact == epsilon and any(atom.reached for atom in atoms)),
            outputs=outputs,
            open_lo=open_lo,
            open_hi=open_hi,
        )

    # Words and parentheses.

    def _terms(self, text: str) -> Iterator[_Term]:
        stack: list[list[_Term]] = []
        opened: list[int] = []
        for number, line in enumerate(lines_of(text), start=1):
            for match in re.finditer(r"[()]|[^()\s;]+|;.*", line):
                word = match.group()
                if word.startswith(";"):
                    break
                if word == "(":
                    if len(stack) == _DEEPEST:
                        raise self._wrong(number, f"more than {_DEEPEST} parentheses are open")
                    stack.append([])
                    opened.append(number)
                elif word == ")":
                    if not stack:
                        raise self._wrong(number, "a parenthesis is closed but was never opened")
                    done = stack.pop()
                    opened.pop()
                    if stack:
                        stack[-1].append(done)
                    else:
                        yield done
                elif not stack:
                    raise self._wrong(number, f"{word[:40]!r} stands outside of parentheses")
                else:
                    stack[-1].append(_Word(word, number))
        if stack:
            raise self._wrong(opened[-1], "a parenthesis is never closed")

    def _head(self, term: _Term) -> _Word:
        while isinstance(term, list):
            if not term:
                raise self._wrong(None, "an empty pair of parentheses")
            if isinstance(term[0], _Word):
                return term[0]
            term = term[0]
        return term

    # Declarations.

    def _network(self, rest: list[_Term], head: _Word) -> None:
        if not rest or not isinstance(rest[0], _Word):
            raise self._wrong(head.line, "a network without a name")
        for part in rest[1:]:
            kind = self._head(part)
            words = part[1:] if isinstance(part, list) else []
            if kind.text in ("declare-input", "declare-output"):
                name = words[0] if words and isinstance(words[0], _Word) else None
                # Without their brackets and commas: [1, 5] may come as several words.
                sizes = re.findall(
                    r"\d{1,9}", " ".join(w.text for w in words[2:] if isinstance(w, _Word))
                )
                if name is None or not sizes:
                    raise self._wrong(kind.line, f"{kind.text} needs a name, a type and a shape")
                self._declare(name, tuple(map(int, sizes)), kind.text == "declare-input")
            elif kind.text not in ("isomorphic-to", "equal-to"):
                raise self._wrong(kind.line, f"{kind.text!r} is not known in a network")

    def _declare(self, name: _Word, shape: tuple[int, ...], is_input: bool) -> None:
        if name.text in self.shapes:
            raise self._wrong(name.line, f"{name.text} is declared twice")
        if not 1 <= math.prod(shape) <= _MOST_ENTRIES:
            raise self._wrong(name.line, f"{name.text} has {math.prod(shape)} entries")
        self.shapes[name.text] = shape
        (self.inputs if is_input else self.outputs).append(name.text)

    def _constant(self, rest: list[_Term], head: _Word) -> None:
        """`(declare-const X_3 Real)` of version 1: entries come one by one."""
        word = rest[0] if rest and isinstance(rest[0], _Word) else head
        found = re.fullmatch(r"([XY])_(\d{1,9})", word.text)
        if found is None or int(found[2]) >= _MOST_ENTRIES:
            raise self._wrong(word.line, f"{word.text!r} is neither X_i nor Y_i")
        name, index = found[1], int(found[2])
        if name not in self.shapes:
            (self.inputs if name == "X" else self.outputs).append(name)
        self.shapes[name] = (max(*self.shapes.get(name, (0,)), index + 1),)

    # Conditions.

    def _assertion(
        self, term: _Term, head: _Word, ends: list[list[_Atom]], kinds: set[str]
    ) -> None:
        about = {self._variable(word)[0] for word in self._words(term) if self._is_variable(word)}
        if about and about <= set(self.inputs):
            self._input(term, head)
        elif about and about <= set(self.outputs):
            if len(self.inputs) == 2:
                # Several conditions must hold at once, so that a lone one of many is an 'and'.
                ends.append([self._atom(atom) for atom in self._atoms(term, head, kinds)])
            elif self.ignored is None:
                self.ignored = head.line
        else:
            raise self._wrong(
                head.line, "a condition may be about inputs or about outputs, not both"
            )

    def _atoms(self, term: _Term, head: _Word, kinds: set[str]) -> Iterator[list[_Term]]:
        top = self._head(term)
        if not isinstance(term, list):
            raise self._wrong(head.line, "a condition is a comparison in parentheses")
        if top.text in ("and", "or"):
            # Of one condition they are that condition: (or (and A) (and B)).
            if len(term) != 2:
                kinds.add(top.text)
            for part in term[1:]:
                yield from self._atoms(part, top, kinds)
        else:
            yield term

    def _input(self, term: _Term, head: _Word) -> None:
        kinds: set[str] = set()
        for atom in self._atoms(term, head, kinds):
            if "or" in kinds:
                raise self._wrong(head.line, "a box is not a choice between boxes: 'or' of inputs")
            sign = self._head(atom)
            if len(atom) != 3:
                raise self._wrong(sign.line, f"{sign.text!r} compares two values")
            left, right = atom[1], atom[2]
            if sign.text in ("==", "=") and self._is_variable(left) and self._is_variable(right):
                (one, i), (two, j) = self._variable(left), self._variable(right)
                if i != j or one == two or len(self.inputs) != 2:
                    raise self._wrong(sign.line, "inputs may be tied to the same entry alone")
                self.shared.add(i)
                continue
            if self._is_variable(left) and self._is_variable(right):
                raise self._wrong(
                    sign.line,
                    f"{sign.text!r} compares two inputs; the question is about one input of both"
                    " networks, whose entries are tied by ==",
                )
            if sign.text in ("==", "="):
                if not self._is_variable(left):
                    left, right = right, left
                (_, i), value = self._variable(left), self._number(right)
                self._end(i, value, upper=False, open_=False)
                self._end(i, value, upper=True, open_=False)
                continue
            if sign.text not in ("<=", ">=", "<", ">"):
                raise self._wrong(sign.line, f"{sign.text!r} is not known for inputs")
            upper = sign.text[0] == "<"
            if not self._is_variable(left):
                left, right, upper = right, left, not upper
            (_, i), value = self._variable(left), self._number(right)
            self._end(i, value, upper=upper, open_=len(sign.text) == 1)

    def _end(self, i: int, value: Fraction, *, upper: bool, open_: bool) -> None:
        """One more condition on an end of the box: of equal ones an open one is the narrower."""
        side = self.hi if upper else self.lo
        sign = -1 if upper else 1
        last, was_open = side.get(i, (value, False))
        # Pairs compare by their numbers first.
        end, narrow = max((sign * last, was_open), (sign * value, open_))
        side[i] = sign * end, narrow

    def _atom(self, atom: list[_Term]) -> _Atom:
        """`(> Y_g[i] (+ Y_f[i] ε))` and its three other forms."""
        sign = self._head(atom)
        if len(atom) != 3 or sign.text not in ("<", ">", "<=", ">="):
            raise self._wrong(sign.line, f"{sign.text!r} is not known for outputs")
        # Both sides as sums: left − right is one output less the other, and a number.
        terms: dict[tuple[str, int], int] = {}
        number = self._sum(atom[1], 1, terms) + self._sum(atom[2], -1, terms)
        signs = {variable: count for variable, count in terms.items() if count}
        if sorted(signs.values()) != [-1, 1]:
            raise self._wrong(sign.line, "an output is compared with another one plus a number")
        (f, i), (g, j) = sorted(signs, key=lambda variable: self.outputs.index(variable[0]))
        if f == g or i != j:
            raise self._wrong(sign.line, "the same output of both networks has to be compared")
        # ±(g − f) + number is above zero, or below it: f is declared first.
        above = (sign.text[0] == ">") == (signs[g, j] == 1)
        shift = -number * signs[g, j]
        if not shift:
            raise self._wrong(sign.line, "ε must be a positive number")
        if (shift > 0) != above:
            raise self._wrong(
                sign.line,
                f"this holds where the outputs agree to within {float(abs(shift)):g}; what is"
                " looked for are inputs at which they do not, as"
                f" (> {g}[{i}] (+ {f}[{i}] {float(abs(shift)):g}))",
            )
        return _Atom(i, 1 if above else -1, abs(shift), len(sign.text) == 2)

    def _sum(self, term: _Term, sign: int, terms: dict[tuple[str, int], int]) -> Fraction:
        """Add a term, or a sum or difference of terms, to those counted; returns its numbers."""
        if self._is_variable(term):
            variable = self._variable(term)
            terms[variable] = terms.get(variable, 0) + sign
            return Fraction(0)
        how = self._head(term)
        if not isinstance(term, list):
            return sign * self._number(term)
        if how is not term[0] or how.text not in ("+", "-") or len(term) < 2:
            raise self._wrong(how.line, "an output is compared with another one plus a number")
        if len(term) == 2:
            return self._sum(term[1], sign if how.text == "+" else -sign, terms)
        later = sign if how.text == "+" else -sign
        return self._sum(term[1], sign, terms) + sum(
            (self._sum(part, later, terms) for part in term[2:]), Fraction(0)
        )

    # Values.

    def _words(self, term: _Term) -> Iterator[_Word]:
        if isinstance(term, _Word):
            yield term
        else:
            for part in term:
                yield from self._words(part)

    def _is_variable(self, term: _Term) -> bool:
        return isinstance(term, _Word) and self._variable_named(term) is not None

    def _variable_named(self, word: _Word) -> tuple[str, int] | None:
        found = _VARIABLE.fullmatch(word.text)
        if found is None or found[1] not in self.shapes:
            return None
        shape = self.shapes[found[1]]
        index = [int(number) for number in (found[2] or found[3]).split(",")]
        # One number counts through the flat tensor.
        if len(index) == 1:
            return found[1], index[0]
        if len(index) != len(shape) or any(i >= n for i, n in zip(index, shape, strict=True)):
            return found[1], _MOST_ENTRIES
        flat = 0
        for number, size in zip(index, shape, strict=True):
            flat = flat * size + number
        return found[1], flat

    def _variable(self, term: _Term) -> tuple[str, int]:
        word = self._head(term)
        found = self._variable_named(word)
        if found is None or isinstance(term, list):
            raise self._wrong(word.line, f"{word.text!r} is not an input or output declared above")
        shape = self.shapes[found[0]]
        if found[1] >= math.prod(shape):
            raise self._wrong(
                word.line, f"{word.text} is not an entry of a tensor of shape {shape}"
            )
        return found

    def _number(self, term: _Term) -> Fraction:
        """As it is written."""
        word = self._head(term)
        if isinstance(term, list):
            # (- 0.5)
            if word.text == "-" and len(term) == 2:
                return -self._number(term[1])
            raise self._wrong(word.line, "a number is expected")
        # A long exponent would fill the memory with zeros.
        decimal = _DECIMAL.fullmatch(word.text) if len(word.text) <= _LONGEST_NUMBER else None
        if decimal is not None and abs(int(decimal[1] or 0)) <= _LARGEST_EXPONENT:
            value = Fraction(word.text)
            if abs(value) <= sys.float_info.max:
                return value
        raise self._wrong(word.line, f"{word.text[:40]!r} is not a number that float64 reaches")

    def _wrong(self, line: int | None, what: str) -> DataError:
        place = f"{self.path}" if line is None else f"{self.path}, line {line}"
        return DataError(f"{place}: {what}.")
