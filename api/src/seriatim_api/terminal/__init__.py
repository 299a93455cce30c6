"""What all commands share on a terminal.

Most text that a command prints was written by others, so it is made safe first.

    safe_text  text without what a terminal might obey; `echo` is the only way by which commands print text
    consoles   a console of rich that prints such text only; the one module here that needs rich
    questions  asks a user a question, on the event loop
"""
