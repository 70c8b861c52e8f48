"""Advantage estimators, one per file: functions of a batch to [N] float32, 0 where not trained."""
