"""Inputs to try a model with: random values, masks, extremes, sizes, sentences, and files of inputs."""
