"""Says which nodes Kubernetes may choose for a new broker, as far as the nodes and the cluster's spec report it.

Kubernetes looks at more than this: free memory, volumes, other pods. So a node that may be chosen need not be.
"""

from __future__ import annotations

from ..spec.cluster import NodeRequirement, PodTemplate, Toleration
from .observed import NodeView, Taint

_KEEP_AWAY = ("NoSchedule", "NoExecute")
"""Effects of taints that keep new pods away."""


def takes_brokers(node: NodeView, template: PodTemplate) -> bool:
    """Whether a new broker may come to a node: it is ready, it is not to be left, and the pod template allows it."""
    if not node.is_ready or node.is_leaving:
        return False
    if any(node.labels.get(key) != value for key, value in template.node_selector.items()):
        return False
    return _is_tolerated(node, template) and _has_affinity(node, template)


def _is_tolerated(node: NodeView, template: PodTemplate) -> bool:
    return all(
        taint.effect not in _KEEP_AWAY or any(_tolerates(each, taint) for each in template.tolerations)
        for taint in node.taints
    )


def _tolerates(toleration: Toleration, taint: Taint) -> bool:
    """Whether a toleration is about this taint, by the rules of Kubernetes."""
    if toleration.effect not in (None, taint.effect) or toleration.key not in (None, taint.key):
        return False
    return toleration.operator == "Exists" or (toleration.value or "") == taint.value


def _has_affinity(node: NodeView, template: PodTemplate) -> bool:
    affinity = template.affinity.node_affinity if template.affinity is not None else None
    required = affinity.required_during_scheduling_ignored_during_execution if affinity is not None else None
    return required is None or any(
        all(_meets(node, requirement) for requirement in term.match_expressions)
        for term in required.node_selector_terms
    )


def _meets(node: NodeView, requirement: NodeRequirement) -> bool:
    value = node.labels.get(requirement.key)
    match requirement.operator:
        case "In":
            return value in requirement.values
        case "NotIn":
            return value not in requirement.values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt":
            try:
                found, wanted = int(value or ""), int(requirement.values[0])
            except (ValueError, IndexError):
                return False
            return found > wanted if requirement.operator == "Gt" else found < wanted
