"""What held-out inputs are, what two models answer to them, and what follows at which level."""
