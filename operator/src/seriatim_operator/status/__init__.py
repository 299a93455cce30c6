"""Makes the reports: statuses and their conditions, each with a reason from a closed list."""
