"""Stories of broken promises: planted bugs in worlds so small that a diagram shows what goes wrong."""
