"""What engines that live in servers of their own have in common."""
