"""The commands that make files of networks: smaller, for other runtimes, or tables about them."""
