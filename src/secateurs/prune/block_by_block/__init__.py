"""Large models pruned block by block, so that the whole never has to run at once."""
