"""Delayed messages: the server of a segment fires those that are due in it, and cancels those that are called back.

firing        which messages are due, their volleys, and the way of a volley to the open segment
cancelling    what a cancellation finds: a message that waits, one that is on its way, or none
retaining     below which index nothing of a segment is delayed any more, so that retention may drop it
moving        stores once more what retention would drop before it is due
listing       what is still delayed, of the rows that were stored
serving       which segments this member may act on, and how a missing server is replaced
ledger        the delay ledger: what the server has done, on the disk of every eligible member
volley_fence  what a server stores before its volleys, and how it learns what its ledger may lack
"""
