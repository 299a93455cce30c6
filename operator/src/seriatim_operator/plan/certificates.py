"""Death certificates: who can know that a run has ended says so, so that brokers need not wait for it.

Two proofs count here. A container that its kubelet reports as ended named its run in its status file: that run is over.
And a disk that was given up, with the proof latched in its Broker, ended the last run on it.
"""

from __future__ import annotations

from .actions import DeclareDead, Plan
from .observed import Observed


def certify(observed: Observed, plan: Plan) -> None:
    """Certificates that are provable and not written yet; only a member's last run can lack one."""
    for pod in observed.pods.values():
        member = observed.member(pod.broker)
        if member is None or member.is_certified:
            continue
        for end in pod.ended:
            if (end.incarnation, end.run) == (member.incarnation, member.run) and end.run:
                evidence = f"the kubelet of {pod.node} reports the container of pod {pod.name} ended ({end.exit_code})"
                plan.actions.append(DeclareDead(pod.broker, member.incarnation, member.run, evidence))
    for broker in observed.brokers.values():
        lost = broker.status.disk_lost
        member = observed.member(f"{broker.spec.group}-{broker.spec.slot}")
        if lost is None or member is None or member.is_certified or not broker.status.incarnation:
            continue
        if member.incarnation == broker.status.incarnation:
            plan.actions.append(DeclareDead(member.broker, member.incarnation, member.run, lost.proof))
