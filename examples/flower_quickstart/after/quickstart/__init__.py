"""Flower's PyTorch quickstart in our own words: ten digits, a small network, no download."""
