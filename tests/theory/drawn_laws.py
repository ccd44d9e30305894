"""Draws of any law, and whether failures are more than chance."""

from scipy import stats

MANY = 300


def refuses(failures, runs, chance, alarm=1e-7):
    """Whether so many failures among the runs are what a chance of at most `chance` can give."""
    return stats.binom.sf(failures - 1, runs, chance) > alarm


def draws(law, shape, rng):
    """Entries of unit 1 of each law; symmetric ones within ±1 have proxy 1, few near zero."""
    return {
        "uniform": lambda: rng.uniform(-1, 1, shape),
        "normal": lambda: rng.normal(size=shape),
        "subgaussian": lambda: rng.choice([-1.0, 1.0], shape) * rng.uniform(0.8, 1, shape),
        "bounded": lambda: rng.choice([-1.0, 1.0], shape),
    }[law]()
