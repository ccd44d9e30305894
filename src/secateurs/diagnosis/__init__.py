"""Which theorem's assumptions a trained network meets, and what a pruning of it did, in numbers."""

from secateurs.diagnosis.changes import LayerChange
from secateurs.diagnosis.layers import Diagnosis, LayerDiagnosis
from secateurs.diagnosis.measure import PruningMeasurement, measure_pruning
from secateurs.diagnosis.weights import diagnose

__all__ = [
    "Diagnosis",
    "LayerChange",
    "LayerDiagnosis",
    "PruningMeasurement",
    "diagnose",
    "measure_pruning",
]
