"""Which magnitude parts the dead weights from the living."""
