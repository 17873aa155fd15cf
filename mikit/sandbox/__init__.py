"""A sandbox for a stranger's Python: it runs against a live model, in a process that can reach nothing else.

Three processes. The one that uses this package holds whatever is secret. It starts a zygote, a program of its own with an empty
environment, which imports torch once, and forks a worker for each session. A worker confines itself, and only then is it given a
model, as names and weights.

with Sandbox() as sandbox, sandbox.start("linear", {"inputs": 4, "outputs": 1}, weights) as worker:
    worker.run("print(model)").text
"""

from mikit.sandbox.confinement import LEVELS, Level
from mikit.sandbox.limits import Limits
from mikit.sandbox.server import Output, Sandbox, Worker

__all__ = ["LEVELS", "Level", "Limits", "Output", "Sandbox", "Worker"]
