"""Rounds: who runs where, what is sent, how it is summed, what follows."""
