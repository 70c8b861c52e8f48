"""Advantages and losses: pure functions, one idea per file."""
