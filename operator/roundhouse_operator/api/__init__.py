"""The two resources as pydantic models: what the operator reads, and what ``crds/`` is generated from.

``service`` and ``replica`` hold the models, ``rules`` what one field's schema cannot say (once as CEL for the API
server, once as Python), ``schema`` turns models into structural schemas and ``crds`` those into
CustomResourceDefinitions. ``parse`` reads objects and collects complaints.
"""
