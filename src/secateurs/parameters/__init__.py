"""Which parameters are meant: names, globs, types and predicates, in the model's own order.

Scores, masks and budgets are mappings from the parameter's own name to a tensor. A parameter that
is used under several names (tied) is listed once, under the first.
"""

from secateurs.parameters.choosing import Chosen, choose, prunable
from secateurs.parameters.fitting import fitted, masks_in, plain
from secateurs.parameters.kinds import Params, Predicate, Where
from secateurs.parameters.model import check_model, refuse_wrapped
from secateurs.parameters.names import absent, aliases, named, owned
from secateurs.parameters.pick import Pick, Picker, pick

__all__ = [
    "Chosen",
    "Params",
    "Pick",
    "Picker",
    "Predicate",
    "Where",
    "absent",
    "aliases",
    "check_model",
    "choose",
    "fitted",
    "masks_in",
    "named",
    "owned",
    "pick",
    "plain",
    "prunable",
    "refuse_wrapped",
]
