"""Attention kernels, one family a file; isojax/models/attention.py is their only user."""
