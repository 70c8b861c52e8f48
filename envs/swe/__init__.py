"""Repair of real repositories: tasks, patches, sealed tests, reports that prove what they say."""
