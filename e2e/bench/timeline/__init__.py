"""Where the time of one message goes: stamps at named functions of the client and of real broker processes."""
