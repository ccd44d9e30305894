"""Backward passes on the cone of a neuron: the part of each map before it that it depends on."""
