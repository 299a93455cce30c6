{{/* Names. The names of the operator's own objects and of etcd's begin with this. */}}
{{- define "seriatim.fullname" -}}
{{- default .Release.Name .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- end }}

{{- define "seriatim.operator.serviceAccount" -}}
{{- $default := ternary (printf "%s-operator" (include "seriatim.fullname" .)) "default" .Values.operator.serviceAccount.create -}}
{{- default $default .Values.operator.serviceAccount.name -}}
{{- end }}

{{- define "seriatim.cluster.name" -}}
{{- default .Release.Name .Values.cluster.name -}}
{{- end }}

{{/* Labels. (dict "root" $ "component" "operator") */}}
{{- define "seriatim.selector" -}}
app.kubernetes.io/name: seriatim
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "seriatim.labels" -}}
{{ include "seriatim.selector" . }}
app.kubernetes.io/part-of: seriatim
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "seriatim.annotations" -}}
{{- with .Values.commonAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Images. (dict "root" $ "name" "broker") */}}
{{- define "seriatim.image" -}}
{{- $images := .root.Values.images -}}
{{- default (printf "%s/%s:%s" $images.registry .name (default .root.Chart.AppVersion $images.tag)) (index $images .name) -}}
{{- end }}

{{- define "seriatim.pullSecrets" -}}
{{- with .Values.images.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end }}

{{/* Settings that the restricted pod security standard requires. */}}
{{- define "seriatim.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "seriatim.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{/* Namespaces that the operator looks after, as a JSON list; empty means all. */}}
{{- define "seriatim.watched" -}}
{{- if .Values.watchNamespaces -}}
{{- toJson .Values.watchNamespaces -}}
{{- else if eq .Values.rbac.scope "Namespace" -}}
{{- toJson (list .Release.Namespace) -}}
{{- else -}}
[]
{{- end -}}
{{- end }}

{{/* The etcd that BrokerClusters of this release use, as their spec.etcd. */}}
{{- define "seriatim.cluster.etcd" -}}
{{- $name := printf "%s-etcd" (include "seriatim.fullname" .) -}}
{{- if .Values.etcd.create -}}
endpoints:
  {{- range $i := until (int .Values.etcd.members) }}
  - {{ $name }}-{{ $i }}.{{ $name }}.{{ $.Release.Namespace }}.svc:2379
  {{- end }}
{{- if .Values.etcd.tls.enabled }}
tlsSecret: {{ include "seriatim.etcd.clientSecret" . }}
{{- end }}
{{- else -}}
endpoints:
  {{- toYaml .Values.etcd.endpoints | nindent 2 }}
{{- with .Values.etcd.tlsSecret }}
tlsSecret: {{ . }}
{{- end }}
{{- if ne .Values.etcd.endpointsChange "Refused" }}
endpointsChange: {{ .Values.etcd.endpointsChange }}
{{- end }}
{{- end -}}
{{- end }}

{{/* The name of the CronJob that takes snapshots of etcd; empty if there is none. */}}
{{- define "seriatim.etcd.snapshots" -}}
{{- if and .Values.etcd.create .Values.etcd.snapshots.schedule -}}
{{- printf "%s-etcd-snapshots" (include "seriatim.fullname" .) -}}
{{- end -}}
{{- end }}

{{- define "seriatim.etcd.serverSecret" -}}
{{- default (printf "%s-etcd-server-tls" (include "seriatim.fullname" .)) .Values.etcd.tls.serverSecret -}}
{{- end }}
{{- define "seriatim.etcd.peerSecret" -}}
{{- default (printf "%s-etcd-peer-tls" (include "seriatim.fullname" .)) .Values.etcd.tls.peerSecret -}}
{{- end }}
{{- define "seriatim.etcd.clientSecret" -}}
{{- default (printf "%s-etcd-client-tls" (include "seriatim.fullname" .)) .Values.etcd.tls.clientSecret -}}
{{- end }}

{{/* Whether to make a kind of the Prometheus operator. (dict "root" $ "want" "Auto" "kind" "PodMonitor"); empty: no. */}}
{{- define "seriatim.monitored" -}}
{{- $known := .root.Capabilities.APIVersions.Has (printf "monitoring.coreos.com/v1/%s" .kind) -}}
{{- if or (eq .want "Always") (and (eq .want "Auto") $known) -}}yes{{- end -}}
{{- end }}

{{/* Whether there is an etcd of this release, none of whose members ever got a volume. */}}
{{- define "seriatim.etcd.stranded" -}}
{{- $name := printf "%s-etcd" (include "seriatim.fullname" .) -}}
{{- $there := lookup "apps/v1" "StatefulSet" .Release.Namespace $name -}}
{{- if and .Values.etcd.create $there -}}
{{- $bound := list -}}
{{- range $i := until (int $there.spec.replicas) -}}
{{- $claim := lookup "v1" "PersistentVolumeClaim" $.Release.Namespace (printf "data-%s-%d" $name $i) -}}
{{- if $claim -}}
{{- with $claim.spec.volumeName -}}{{- $bound = append $bound . -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- if not $bound -}}yes{{- end -}}
{{- end -}}
{{- end }}

{{/*
The class of etcd's volumes, if another one is asked for now. (Sizes are left to Kubernetes, which compares 1Gi with
1024Mi.)
*/}}
{{- define "seriatim.etcd.otherVolumes" -}}
{{- $name := printf "%s-etcd" (include "seriatim.fullname" .) -}}
{{- $there := lookup "apps/v1" "StatefulSet" .Release.Namespace $name -}}
{{- if and .Values.etcd.create $there -}}
{{- $was := dig "storageClassName" "" (index $there.spec.volumeClaimTemplates 0).spec -}}
{{- if ne $was .Values.etcd.storage.storageClassName -}}
{{- ternary (printf "etcd.storage.storageClassName=%s" $was) "no etcd.storage.storageClassName" (ne $was "") -}}
{{- end -}}
{{- end -}}
{{- end }}
