"""Tests of the runtime: real asyncio, a real embedded coordinator, scripted cores."""
