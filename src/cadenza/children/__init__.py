"""Child processes for work that a stranger's bytes decide: their memory and CPU time are limited, and they may die.

`lane` is the face for the service: one child, and a queue in which owners take turns. `process` is one running child,
`confine` is what the child itself calls. A room like http: it knows no keys, no money and no models.
"""
