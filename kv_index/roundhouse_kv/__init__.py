"""Live state: prefix keys, the KV log and its mirror, leases, books, catalogue and demand.

The only package that talks to Redis. Pure modules hold the rules (``keys``, ``text``, ``mirror``, ``books``, the
``*_wire`` formats); modules named ``*_store`` or ``*_feed`` do the I/O.
"""
