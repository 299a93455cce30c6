"""Clusters of bare cores: brokers, their network and the coordinator are modelled; the runtime is left out."""
