"""`kubectl seriatim`: shows a cluster, its plan and its chains, drains broker groups, and examines what is wrong."""
