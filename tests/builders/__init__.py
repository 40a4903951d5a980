"""Small federated methods whose results can be computed by hand, and a way to run them."""
