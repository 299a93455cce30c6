"""Copies: what makes and keeps two whole copies of a sealed segment.

copying          this member completes a segment
repair           a copy here is damaged, and written anew
settle           the length of an UNSETTLED segment is found
gaps             a person declares a segment lost that no disk has any more
producer_tables  the producers of segments that are over
"""
