"""A driver on the node with this address: ADDRESS KIND NODE. Of the kind `actor`, it keeps an actor
on the node that has the resource `busy`."""

import sys
import time

import ray

address, kind, node = sys.argv[1:]
ray.init(address=address, log_to_driver=False, _node_ip_address=node)


@ray.remote(num_cpus=1, resources={"busy": 1})
class Actor:
    def ready(self):
        return True


if kind == "actor":
    actor = Actor.remote()
    assert ray.get(actor.ready.remote())
    # The node reports that it is busy a moment later.
    time.sleep(2)
here = ray.get_runtime_context().get_node_id()
addresses = [one["NodeManagerAddress"] for one in ray.nodes() if one["NodeID"] == here]
assert addresses == [node], addresses
print("ready", flush=True)
while True:
    time.sleep(60)
