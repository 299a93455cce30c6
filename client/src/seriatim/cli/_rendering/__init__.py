"""What users and programs see: lines, tables, JSON forms. Nothing here asks a broker.

Nothing here asks a broker, or knows a command.

    output      messages as lines, values of the client in JSON, tables
    chain_view  chains as cards or ribbons
    notes       events of a consumer or a range, on stderr
    meter       figures of a stream of sends
    times       times and durations as text
    remedies    advice about errors, by number
"""
