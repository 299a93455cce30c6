"""From the models to what Kubernetes and people read: definitions of the kinds, and the page about them."""
