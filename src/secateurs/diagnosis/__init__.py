"""Which theorem's assumptions a trained network meets, and what a pruning of it did, in numbers."""

from secateurs.diagnosis.diagnose import Diagnosis, LayerDiagnosis, diagnose
from secateurs.diagnosis.measure import LayerChange, PruningMeasurement, measure_pruning

__all__ = [
    "Diagnosis",
    "LayerChange",
    "LayerDiagnosis",
    "PruningMeasurement",
    "diagnose",
    "measure_pruning",
]
