"""The factors of a weight: their mathematics, their layout in memory, what shares one."""
