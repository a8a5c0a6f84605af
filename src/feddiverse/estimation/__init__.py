"""How the server learns triplets, attributes and group sums: `oracle` (experiments only), `paper`, `consensus`."""
