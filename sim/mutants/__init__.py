"""Planted bugs: rules of the product, removed one at a time, each of which the simulation must find.

`catalogue` has them all by name, `mutation` switches one on, `rows` reads those that are written as a change of text,
and `slow` names those that only `make test-slow` looks for. Each other module has the bugs of one area.
"""
