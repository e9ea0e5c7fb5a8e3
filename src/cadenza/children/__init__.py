"""Child processes for work that a stranger's bytes decide: their memory and CPU time are limited, and they may die.

The service uses `lane`: one child, and a queue in which owners take turns (`turns`). `process` is one running child;
`confine` is what the child itself calls. Like http, it knows no keys, no money and no models.
"""
