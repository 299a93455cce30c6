"""How a member of the chart's etcd begins: on its disk, anew, or in the place of one whose disk is lost."""
