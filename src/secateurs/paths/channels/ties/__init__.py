"""Channels that share one scale: how they are labelled, united and counted."""
