"""One update of the policy: advantages, losses, regularisers, the learning rate and the
gradient."""
