"""The fault suite's own logic: schedules replay, damage is seen, and every check can fail."""
