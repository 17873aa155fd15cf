"""A target whose model lies in another process of this machine, the model host: notebooks see no difference.

A function that works on a model is marked `served`: its arguments and its result are data, so that it can be computed
where the model is. `served_target` gives a target whose model is a stand-in; such functions, called with it, ask the host.
"""

from mikit.targets.remote.client import HostClient
from mikit.targets.remote.served import served
from mikit.targets.remote.stand_in import StandIn, served_target

__all__ = ["HostClient", "StandIn", "served", "served_target"]
