"""Copies: what makes and keeps two in-sync copies of a sealed segment.

copying          this member completes its copy of a segment
repair           this member rewrites a damaged copy
settle           this member gives an UNSETTLED segment its length
gaps             an administrator declares a segment lost because no disk has it any more
producer_tables  the producer tables of sealed segments
"""
