"""The outside world: the Kubernetes API and the brokers, each behind one small class."""
