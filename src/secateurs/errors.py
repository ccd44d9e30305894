"""Every error `secateurs` raises, in one tree.

::

    SecateursError
    ├── ArgumentError (ValueError)         an option out of range, or options in conflict
    │   └── UnknownNameError (LookupError) a name not registered; the nearest are suggested
    ├── ParameterError (ValueError)        a parameter that cannot be scored or pruned
    │   └── EmptySelectionError            nothing is left to prune
    ├── ScoreError (ValueError)            a score that is NaN, infinite or misshapen
    ├── PatternError (ValueError)          a pattern that does not fit a parameter's shape
    ├── MaskError (ValueError)             a mask that does not fit the model
    │   └── MaskFileError                  a mask file that is damaged, foreign or hostile
    ├── TrainingError (RuntimeError)       a training run that cannot go on
    ├── CaptureError (ValueError)          a model that cannot be read as a graph
    │   ├── UnsupportedOperation           operations without a lowering rule, with places
    │   └── StructureMismatch              two models that should share a graph and do not
    ├── DomainError (ValueError)           an input domain that is empty or malformed
    ├── TheoryError (ValueError)           a theorem asked outside its assumptions
    ├── DataError (RuntimeError)           a data file that is missing, damaged or foreign
    ├── ShipError (RuntimeError)           a model that cannot be shipped as asked
    │   ├── SparseFileError                a sparse file that is damaged, foreign or hostile
    │   └── RecordError                    a record of the zoo that is damaged, foreign or hostile
    ├── StoreError (RuntimeError)          a study's store that is damaged or out of reach
    └── MissingExtra (ImportError)         an optional package; the message installs it

A message says what is wrong with the actual value, where, and what to do.
What can be collected is collected and raised once.
"""

# The errors that users see.
__all__ = [
    "ArgumentError",
    "CaptureError",
    "DataError",
    "DomainError",
    "EmptySelectionError",
    "MaskError",
    "MaskFileError",
    "MissingExtra",
    "ParameterError",
    "PatternError",
    "RecordError",
    "ScoreError",
    "SecateursError",
    "ShipError",
    "SparseFileError",
    "StoreError",
    "StructureMismatch",
    "TheoryError",
    "TrainingError",
    "UnknownNameError",
    "UnsupportedOperation",
]


class SecateursError(Exception):
    """Base of every error of this library."""


class ArgumentError(SecateursError, ValueError):
    """An option is out of range, or options exclude each other."""


class UnknownNameError(ArgumentError, LookupError):
    """A name is not registered."""


class ParameterError(SecateursError, ValueError):
    """A parameter cannot be scored or pruned."""


class EmptySelectionError(ParameterError):
    """No parameter is left to prune."""


class ScoreError(SecateursError, ValueError):
    """A score is NaN, infinite, negative or of the wrong shape."""


class PatternError(SecateursError, ValueError):
    """A pattern does not fit the shape of a parameter."""


class MaskError(SecateursError, ValueError):
    """A mask does not fit the model."""


class MaskFileError(MaskError):
    """A mask file is damaged, foreign or hostile."""


class TrainingError(SecateursError, RuntimeError):
    """A training run cannot go on."""


class CaptureError(SecateursError, ValueError):
    """A model cannot be read as a graph."""


class UnsupportedOperation(CaptureError):
    """The model uses operations that have no lowering rule."""


class StructureMismatch(CaptureError):
    """Two models that should share one graph do not."""


class DomainError(SecateursError, ValueError):
    """An input domain is empty, malformed or of the wrong shape."""


class TheoryError(SecateursError, ValueError):
    """A theorem was asked outside its assumptions."""


class DataError(SecateursError, RuntimeError):
    """A data set or file is missing, damaged or foreign."""


class ShipError(SecateursError, RuntimeError):
    """A model cannot be made smaller, faster or exported as asked, or the result does not equal
    it.
    """


class SparseFileError(ShipError):
    """A sparse file is damaged, foreign or hostile."""


class RecordError(ShipError):
    """A record of the zoo is damaged, foreign or hostile."""


class StoreError(SecateursError, RuntimeError):
    """A study's store cannot be read or written, or something in it is damaged."""


class MissingExtra(SecateursError, ImportError):
    """An optional dependency is not installed.

    >>> raise MissingExtra.of("onnxruntime", extra="onnx")
    Traceback (most recent call last):
        ...
    secateurs.errors.MissingExtra: ... Install it with: pip install 'secateurs[onnx]'
    """

    @classmethod
    def of(cls, package: str, *, extra: str, by: str = "secateurs") -> "MissingExtra":
        return cls(f"{package} is not installed. Install it with: pip install '{by}[{extra}]'")


def first_line(error: BaseException) -> str:
    """The first line of a message."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
