"""The client's decisions, without I/O: `producer` for order and outcomes of sends, `consumer` for order of deliveries.

Nothing here reads a clock, draws a random number or waits. The same code runs under asyncio in the client and in the
simulator on virtual time.
"""
