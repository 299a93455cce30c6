"""The runtime: everything around the core that takes time. Rooms; each imports only those that come after it:

assembly     the parts of a running broker, each with the parts that it needs
rebuild      reads what is in the coordinator, plans what is missing, and writes it
controller   what the elected controller does for the whole cluster
duties       what each broker does from time to time for its own partitions and its own disk
driver       feeds events to the core and carries out its effects
membership   this broker as a member of its cluster, and what it knows of the others
coordinator  keys and records in the coordinator, and watches of them
"""
