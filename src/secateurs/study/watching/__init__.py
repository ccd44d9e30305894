"""How a study is seen to run."""
