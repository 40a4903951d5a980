"""How good embeddings and clusters are: pure functions of embeddings, assignments and labels."""
