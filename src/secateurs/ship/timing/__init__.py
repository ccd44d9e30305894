"""How long the layers of a network take at a few densities, as a table that budgets are read
from."""

from secateurs.ship.timing.measured import latency_table
from secateurs.ship.timing.table import LatencyTable, LayerTimes

__all__ = ["LatencyTable", "LayerTimes", "latency_table"]
