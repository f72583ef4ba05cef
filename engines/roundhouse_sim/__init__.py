"""An engine without a model: the bundled engine's HTTP API, metrics and KV events, its time from a cost model.

Pure core: ``cost`` (seconds of a step), ``cache`` (LRU of prefix blocks), ``scheduler`` (continuous batching in
virtual time), ``answer`` (the text it makes up), ``tokens`` (1 token = 1 byte). Around it: ``engine`` runs the core
against the clock, ``server`` speaks HTTP/1.1, ``service`` routes, ``inference`` and ``replies`` answer, ``shapes`` has
vLLM's bytes, ``kv_events`` and ``kv_sockets`` publish the cache, ``faults`` breaks things on request.
"""
