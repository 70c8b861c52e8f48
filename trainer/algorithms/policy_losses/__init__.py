"""Policy losses, one per file: from a micro-batch's logprobs to a sum over tokens, and statistics.

Each is `loss(logprobs_K, tokens) -> (sum, statistics)`; options are keywords with their defaults.
Ratios are taken to the logprobs that the tokens were really sampled with.
"""
