"""Which role of a run lies on which devices: asked for, checked against machines, or chosen."""
