"""The gateway: an OpenAI-compatible data plane that sends each request to the replica where it will finish first.

Data flow: ``client_connection`` parses → ``request_body`` reads → ``router`` asks ``pick`` for a ranking →
``exchange`` runs the request over ``upstream`` connections and relays what comes back. ``fleet`` keeps what is known of
the replicas, fed by ``roundhouse_kv``; ``admin`` looks at it from a thread of its own.
"""
