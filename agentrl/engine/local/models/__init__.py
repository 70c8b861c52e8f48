"""Models that the package makes or fetches itself."""
