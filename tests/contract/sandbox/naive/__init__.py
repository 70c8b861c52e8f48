"""A grader that cheats win against: one run with twins and an audit hook.

It is kept for the tests alone: a cheat that does not win here shows nothing where it is caught.
"""
