"""Sandboxes that contain the code a policy writes: so far, which of them a machine has."""

from agentrl.sandboxes.probe import Probe, probe_sandboxes

__all__ = ["Probe", "probe_sandboxes"]
