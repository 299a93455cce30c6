"""Copies: what makes and keeps two whole copies of a sealed segment.

copying          this member completes its copy of a segment
repair           this member writes a damaged copy anew
settle           this member gives an UNSETTLED segment its length
gaps             a person declares a segment lost because no disk has it any more
producer_tables  the producer tables of sealed segments
"""
