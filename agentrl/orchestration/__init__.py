"""The controller: it wires configs to parts and holds the control loop."""
