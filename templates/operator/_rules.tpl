{{/* Rights of the operator in each namespace that it looks after. */}}
{{- define "seriatim.operator.rules" -}}
# Administrators own clusters, topics and consumer groups. The operator reports on them, and adds a finalizer if one is
# wanted.
- apiGroups: [seriatim.dev]
  resources: [brokerclusters, topics, consumergroups]
  verbs: [get, list, watch, patch]
# Broker groups and brokers are the operator's own records.
- apiGroups: [seriatim.dev]
  resources: [brokergroups, brokers]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [seriatim.dev]
  resources: [brokerclusters/status, brokergroups/status, brokers/status, topics/status, consumergroups/status]
  verbs: [get, patch]
# Needed to name these as owners of children, if blockOwnerDeletion is checked.
- apiGroups: [seriatim.dev]
  resources: [brokerclusters/finalizers, brokergroups/finalizers, brokers/finalizers]
  verbs: [update]
- apiGroups: [""]
  resources: [pods, persistentvolumeclaims, services, configmaps, secrets, serviceaccounts]
  verbs: [get, list, watch, create, patch, delete]
# Only a kubelet's Event says that a volume cannot be mounted.
- apiGroups: [""]
  resources: [events]
  verbs: [list, create, patch]
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create, patch]
# Another operator may look after a cluster. Its Lease shows whether it lives.
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [get]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch, create, patch, delete]
{{- end }}

{{/* Objects without a namespace that the operator reads. */}}
{{- define "seriatim.operator.nodeRules" -}}
# Shows whether a node is gone, cordoned or out of service, which node has a local disk, and how a class binds.
- apiGroups: [""]
  resources: [nodes, persistentvolumes]
  verbs: [get, list, watch]
- apiGroups: [storage.k8s.io]
  resources: [storageclasses]
  verbs: [get, list, watch]
# Reports whether the definitions here are those that this operator knows, and when one is added.
- apiGroups: [apiextensions.k8s.io]
  resources: [customresourcedefinitions]
  verbs: [get, list, watch]
{{- end }}
