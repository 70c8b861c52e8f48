"""vLLM servers as an engine."""
