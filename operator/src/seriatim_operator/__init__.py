"""The Kubernetes operator of Seriatim. Each pass observes, plans, applies and reports."""
