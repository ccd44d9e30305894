"""The strength λ over a run: schedules, a target sparsity, forecasts and warnings."""
