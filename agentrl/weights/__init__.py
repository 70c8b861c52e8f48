"""The way of new weights from a trainer to an engine; neither side knows the other.

    source ─ layout ─▶ plan: moves ─▶ buckets ─ write ─▶ check ─ send ─▶ confirm ─▶ version
    (trainer)          who gives what to whom  (trainer)         (the engine's own)

`source` is what a trainer offers, `plan` who sends which slice to whom and in which buckets,
`shared` the memory that buckets lie in, `check` what is refused before an engine has it, `experts`
the names that files have for stacked experts.
"""
