"""Replicas: slices that each hold the whole model and average their gradients host to host."""
