"""What happens in one run, stage by stage."""
