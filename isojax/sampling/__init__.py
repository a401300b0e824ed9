"""Rollouts: the jitted sampler, its cache and its draws."""
