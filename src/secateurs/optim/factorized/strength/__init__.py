"""The strength λ over a run.

`schedules`: how λ moves by itself. `target`: how it is steered to a sparsity (`Control`). `now`:
the λ of the next step, from both. `forecast` (with `rates` and `wording`), `worst`, `warnings`:
whether weights reach zero in time. `reach`: whether a target can be met.
"""
