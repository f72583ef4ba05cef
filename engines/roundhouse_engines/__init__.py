"""Engine kinds; per kind ``launch`` for the operator, ``dialect`` for the gateway, ``probe`` for the agent.

Callers ask by kind (``load_launch("torch")``) and never branch on a kind's name. A kind's module is imported only when
asked for, so the gateway never loads what only an agent needs.
"""
