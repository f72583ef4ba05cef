"""`roundhouse up`: one process that runs everything, and the socket that the other commands talk to.

``supervisor`` puts the parts together, ``home`` is the folder of a run, ``valkey``, ``gateways`` and ``operators`` keep
one part each alive, ``control`` answers the CLI (``requests`` is its protocol), ``progress`` and ``tables`` are pure
views of objects, ``display`` prints.
"""
