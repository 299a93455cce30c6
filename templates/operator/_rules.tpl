{{/* What the operator may do in each namespace that it looks after. */}}
{{- define "seriatim.operator.rules" -}}
# Clusters, topics and consumer groups are people's: the operator reports, and adds a finalizer where one is asked for.
- apiGroups: [seriatim.dev]
  resources: [brokerclusters, topics, consumergroups]
  verbs: [get, list, watch, patch]
# Groups and brokers are its own records.
- apiGroups: [seriatim.dev]
  resources: [brokergroups, brokers]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [seriatim.dev]
  resources: [brokerclusters/status, brokergroups/status, brokers/status, topics/status, consumergroups/status]
  verbs: [get, patch]
# So that children may name their owner where blockOwnerDeletion is checked.
- apiGroups: [seriatim.dev]
  resources: [brokerclusters/finalizers, brokergroups/finalizers, brokers/finalizers]
  verbs: [update]
- apiGroups: [""]
  resources: [pods, persistentvolumeclaims, services, configmaps, secrets, serviceaccounts]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [events]
  verbs: [create, patch]
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create, patch]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch, create, patch, delete]
{{- end }}

{{/* What it reads that lies in no namespace. */}}
{{- define "seriatim.operator.nodeRules" -}}
# A node that is gone, cordoned or out of service; the node that a local disk belongs to; how a class binds.
- apiGroups: [""]
  resources: [nodes, persistentvolumes]
  verbs: [get, list, watch]
- apiGroups: [storage.k8s.io]
  resources: [storageclasses]
  verbs: [get, list, watch]
# Whether the definitions here are those that this operator knows; it is told when one comes.
- apiGroups: [apiextensions.k8s.io]
  resources: [customresourcedefinitions]
  verbs: [get, list, watch]
{{- end }}
