"""isojax: where a budget of GRPO rollouts goes. Runs (B_p, n) sweeps on JAX and fits the scaling law n*(C) to them."""

__version__ = "0.1.0"
