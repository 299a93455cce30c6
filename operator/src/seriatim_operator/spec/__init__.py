"""What users and the operator write into Kubernetes: typed models, one source for the CRDs."""
