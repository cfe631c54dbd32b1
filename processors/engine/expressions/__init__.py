"""Column expressions such as ``sdf["price"] * sdf["n"]``, and the steps that compute them."""
