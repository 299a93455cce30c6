"""Publications: what a writer's record may become, where a master goes on, and the carrying out itself."""
