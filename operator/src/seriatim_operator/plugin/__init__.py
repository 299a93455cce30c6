"""`kubectl seriatim`: pictures, plans and a doctor for people, where `kubectl get` says too little."""
