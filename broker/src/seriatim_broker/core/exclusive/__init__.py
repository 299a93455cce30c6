"""One active program: the election of the owner of a name. `core.writing.exclusive_producers` checks its epoch.

election        which program is the owner of a name, at the broker that elects it
"""
