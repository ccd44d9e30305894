"""How the words of a tensor are written: their bits, their places, streams of both."""
