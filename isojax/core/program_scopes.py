"""Names of the loops of a sweep's programs, which are traced under them (`jax.named_scope`).

XLA writes a loop's scope into the program that it compiles, where launch/hlo_cycles.py finds it.
They change no number that a program computes.
"""

SAMPLE_CHUNKS = "sample_chunks"  # over the sampler's chunks, where a program samples a whole batch
PREFILL_BLOCKS = "prefill_blocks"  # over blocks of g prompts, which the sampler prefills
DECODE_TOKENS = "decode_tokens"  # over tokens: an iteration is one token in each slot
GRADIENT_BLOCKS = "gradient_blocks"  # of the update, over blocks of g prompts
MICROBATCHES = "microbatches"  # within a block of the update, over microbatches of one width
