"""Repair tasks from any Python package that has tests: `agentrl tasks build`."""
