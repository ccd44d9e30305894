"""Weights pruned where they lie: safetensors files and sharded folders, read piece by piece."""
