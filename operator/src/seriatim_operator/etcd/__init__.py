"""Starts a member of the chart's etcd: on its log, as a member of a new cluster, or in place of a lost disk.

joining   the decision what a starting member must do; pure
starting  `seriatim operator etcd-member`, which carries it out and writes the settings of etcd
gateway   the three calls about membership, over etcd's HTTP gateway
watched   members of the operator's release and the age of the newest snapshot, for reports only
stranded  removal of an etcd that never had a volume, so that it can have another storage class
removing  `seriatim operator remove-stranded-etcd`, which the chart runs before such an upgrade
"""
