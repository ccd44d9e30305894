"""Commands on what theory guarantees: plans, diagnoses, random matrices."""
