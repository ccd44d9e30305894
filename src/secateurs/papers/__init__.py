"""The published experiments, each a list of jobs, a table and figures beside the printed ones."""
