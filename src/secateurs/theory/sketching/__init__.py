"""Pruning as matrix sketching: lemmas, masks, Jacobians and the tangent kernel."""
