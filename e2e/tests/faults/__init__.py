"""The fault suite's own logic: that schedules replay, that damage is seen, that every check can fail."""
