"""Schulman's estimators of KL(policy || base) from tokens that the policy drew, one file each:
`estimate(logps, base_logps) -> f32[m T]` of each token, from its log-probabilities f32[m T] by the
policy and by the base policy. The function has the decorator `@kl_estimator`."""

from isojax.core.plugins import NoTraits, PluginKind

kl_estimator = PluginKind("kl_estimator", "rl.kl_estimators", NoTraits)
