"""Policy losses, one file each: `loss(logps, sampler_logps, advantages, mask, clip) -> (per-token loss, per-token metrics)`.

A loss reduces nothing: the update divides once, by the number of response tokens of the whole batch.
"""
