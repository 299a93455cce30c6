"""Talks to the Kubernetes API and to the brokers, through one class for each."""
