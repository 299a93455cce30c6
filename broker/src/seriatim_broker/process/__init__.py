"""The process of a server: how it is set up, and the ports and files that administrators look at.

settings          from a TOML file, the environment (`SERIATIM_...`) and the command line
start, memory     what a process sets before it imports its libraries, and before it allocates
logs              JSON lines on stderr, or lines for a terminal
health            the admin port: metrics and health over HTTP or HTTPS
tls               TLS on the ports; each handshake looks up the newest certificates
status_file       which member run this process is, and why it ended
rebuild_command   `seriatim coordinator rebuild`
snapshot_command  `seriatim coordinator keep-snapshot` and `get-snapshot`
"""
