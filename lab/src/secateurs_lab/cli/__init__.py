"""The commands of the laboratory, which `secateurs` finds by their entry point."""
