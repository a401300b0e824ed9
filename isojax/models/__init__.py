"""Policies: one decoder, one file a family."""
