"""With which image a missing pod is made, and which pods take nothing away when they are replaced.

A template works if a member has served with it. So a spec that was wrong can be corrected, and a member that is lost
while the wanted template does not work comes back all the same, with the last image that worked.
"""

from __future__ import annotations

from ..resources.cluster_children import ClusterChildren
from ..resources.names import FORMER
from ..spec.broker import Broker
from .observed import Observed, PodView


def former_image(observed: Observed, make: ClusterChildren, broker: Broker) -> str:
    """The last image that worked, if the broker's pod should be made with it; empty for the wanted image.

    The broker's own last image counts first. A Broker with a new disk has none, and takes that of another member that
    serves. No former image is used if a member serves with the wanted template, or for the one whose turn it is to try
    it.
    """
    operation = observed.cluster.status.operation
    if operation is not None and (operation.kind, operation.object) == ("Roll", broker.name):
        return ""
    serving = [pod for each in observed.all_holders() if (pod := observed.pods.get(each.name)) and pod.is_ready]
    served = broker.status.served
    image = served.image if served is not None else next((pod.image for pod in serving), "")
    if image in ("", make.image):
        return ""
    wanted = make.template_hash()
    return "" if any(pod.template_hash == wanted for pod in serving) else image


def takes_nothing_away(broker: Broker, pod: PodView) -> bool:
    """Whether the pod cannot serve as it is: it has no image, or it never served with its template.

    A pod with a former image was made because that image works, so it only needs time.
    """
    if pod.is_ready:
        return False
    if pod.lacks_image:
        return True
    served = broker.status.served
    return not pod.template_hash.startswith(FORMER) and (served is None or served.template != pod.template_hash)
