"""The Kubernetes operator of Seriatim: observe, plan, apply, report."""
