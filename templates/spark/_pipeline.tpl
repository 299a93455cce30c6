{{/* Spark pipelines. All templates take (dict "root" $ "pipeline" .). What is not given has the chart's defaults. */}}
{{- define "seriatim.spark.name" -}}
{{ include "seriatim.fullname" .root }}-spark-{{ .pipeline.name }}
{{- end }}

{{- define "seriatim.spark.labels" -}}
{{ include "seriatim.labels" (dict "root" .root "component" "spark") }}
seriatim.dev/pipeline: {{ .pipeline.name }}
{{- end }}

{{/* Volumes that driver and executors mount: data, certificates, scratch. */}}
{{- define "seriatim.spark.volumes" -}}
- name: tmp
  emptyDir: {}
- name: work
  emptyDir: {}
# Spark finds its scratch directory by the name of the volume.
- name: spark-local-dir-1
  {{- if .pipeline.scratch }}
  {{- toYaml .pipeline.scratch | nindent 2 }}
  {{- else }}
  emptyDir: {}
  {{- end }}
{{- with .pipeline.claim }}
- name: data
  persistentVolumeClaim: {claimName: {{ . }}}
{{- end }}
{{- with include "seriatim.spark.tlsSecret" . }}
- name: tls
  secret: {secretName: {{ . }}, defaultMode: 0440}
{{- end }}
{{- with .pipeline.volumes }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "seriatim.spark.mounts" -}}
- {name: tmp, mountPath: /tmp}
- {name: work, mountPath: /var/spark}
- {name: spark-local-dir-1, mountPath: /var/spark-local}
{{- if .pipeline.claim }}
- {name: data, mountPath: {{ default "/data" .pipeline.claimPath }}}
{{- end }}
{{- if include "seriatim.spark.tlsSecret" . }}
- {name: tls, mountPath: /etc/seriatim/tls, readOnly: true}
{{- end }}
{{- with .pipeline.volumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* The Secret with the client's certificate; empty: plain text. */}}
{{- define "seriatim.spark.tlsSecret" -}}
{{- if hasKey .pipeline "tlsSecret" -}}
{{- .pipeline.tlsSecret -}}
{{- else if .pipeline.cluster -}}
{{- .pipeline.cluster }}-client-tls
{{- end -}}
{{- end }}

{{- define "seriatim.spark.placement" -}}
# If its node is gone, Kubernetes replaces the pod after 30 s, not after five minutes.
tolerations:
  - {key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: 30}
  - {key: node.kubernetes.io/not-ready, operator: Exists, effect: NoExecute, tolerationSeconds: 30}
  {{- with .pipeline.tolerations }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with .pipeline.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .pipeline.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .pipeline.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end }}

{{/* Not empty for pipelines that do not end: their drivers serve their own progress, on another port than Spark's. */}}
{{- define "seriatim.spark.tellsProgress" -}}
{{- if has .pipeline.run (list "apply" "archive" "mirror") -}}true{{- end -}}
{{- end }}

{{- define "seriatim.spark.progressPort" -}}7103{{- end }}

{{/* The command line: spark-submit, then the pipeline and its options. */}}
{{- define "seriatim.spark.args" -}}
{{- $executors := int (default 0 .pipeline.executors) -}}
- spark-submit
- --name
- {{ include "seriatim.spark.name" . }}
- --master
{{- if $executors }}
- k8s://https://kubernetes.default.svc
- --deploy-mode
- client
{{- else }}
# A task that failed is tried again, as on executors.
- local[{{ default 2 .pipeline.cores }},4]
{{- end }}
- --properties-file
- /etc/seriatim/spark/spark.properties
- --conf
- spark.driver.host=$(POD_IP)
- --conf
- spark.driver.bindAddress=$(POD_IP)
{{- if $executors }}
- --conf
- spark.kubernetes.driver.pod.name=$(POD_NAME)
{{- end }}
- /opt/seriatim/pipelines.py
- {{ .pipeline.run }}
{{- if .pipeline.cluster }}
- --bootstrap={{ .pipeline.cluster }}.{{ .root.Release.Namespace }}.svc:7100
{{- end }}
{{- if include "seriatim.spark.tlsSecret" . }}
- --tls-ca=/etc/seriatim/tls/ca.crt
- --tls-cert=/etc/seriatim/tls/tls.crt
- --tls-key=/etc/seriatim/tls/tls.key
{{- end }}
{{- if include "seriatim.spark.tellsProgress" . }}
- --metrics-listen=$(POD_IP):{{ include "seriatim.spark.progressPort" . }}
{{- end }}
{{- range $name, $value := .pipeline.options }}
{{- if kindIs "slice" $value }}
{{- range $value }}
- {{ printf "--%s=%v" $name . | quote }}
{{- end }}
{{- else if kindIs "bool" $value }}
{{- if $value }}
- {{ printf "--%s" $name | quote }}
{{- end }}
{{- else if kindIs "float64" $value }}
- {{ printf "--%s=%v" $name (int64 $value) | quote }}
{{- else }}
- {{ printf "--%s=%v" $name $value | quote }}
{{- end }}
{{- end }}
{{- end }}

{{- define "seriatim.spark.pod" -}}
{{- $executors := int (default 0 .pipeline.executors) -}}
serviceAccountName: {{ include "seriatim.spark.serviceAccount" .root }}
automountServiceAccountToken: {{ ne $executors 0 }}
{{- include "seriatim.pullSecrets" .root }}
terminationGracePeriodSeconds: 60
securityContext:
  {{- include "seriatim.podSecurity" .root | nindent 2 }}
{{ include "seriatim.spark.placement" . }}
containers:
  - name: driver
    image: {{ include "seriatim.image" (dict "root" .root "name" "spark") }}
    imagePullPolicy: {{ .root.Values.images.pullPolicy }}
    args:
      {{- include "seriatim.spark.args" . | nindent 6 }}
    env:
      - name: POD_NAME
        valueFrom: {fieldRef: {fieldPath: metadata.name}}
      - name: POD_IP
        valueFrom: {fieldRef: {fieldPath: status.podIP}}
      - {name: SPARK_LOCAL_DIRS, value: /var/spark-local}
      {{- with .pipeline.env }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
    ports:
      - {name: spark-ui, containerPort: 4040}
      {{- if include "seriatim.spark.tellsProgress" . }}
      - {name: progress, containerPort: {{ include "seriatim.spark.progressPort" . }}}
      {{- end }}
    # Alive means that the Java process of the driver answers. Only the lag says whether a stream advances.
    startupProbe:
      httpGet: {path: /metrics/prometheus, port: spark-ui}
      periodSeconds: 5
      timeoutSeconds: 5
      failureThreshold: 60
    livenessProbe:
      httpGet: {path: /metrics/prometheus, port: spark-ui}
      periodSeconds: 20
      timeoutSeconds: 10
      failureThreshold: 6
    resources:
      {{- toYaml (default .root.Values.spark.resources .pipeline.resources) | nindent 6 }}
    securityContext:
      {{- include "seriatim.containerSecurity" .root | nindent 6 }}
    volumeMounts:
      {{- include "seriatim.spark.mounts" . | nindent 6 }}
      - {name: config, mountPath: /etc/seriatim/spark, readOnly: true}
volumes:
  {{- include "seriatim.spark.volumes" . | nindent 2 }}
  - name: config
    configMap: {name: {{ include "seriatim.spark.name" . }}}
{{- end }}

{{- define "seriatim.spark.serviceAccount" -}}
{{- default (printf "%s-spark" (include "seriatim.fullname" .)) .Values.spark.serviceAccount.name -}}
{{- end }}

{{/* Settings of Spark: Kubernetes and metrics. */}}
{{- define "seriatim.spark.properties" -}}
spark.driver.memory {{ default .root.Values.spark.driverMemory .pipeline.driverMemory }}
spark.ui.killEnabled false
spark.ui.prometheus.enabled true
spark.sql.streaming.metricsEnabled true
spark.metrics.namespace seriatim
spark.metrics.conf.*.sink.prometheusServlet.class org.apache.spark.metrics.sink.PrometheusServlet
spark.metrics.conf.*.sink.prometheusServlet.path /metrics/prometheus
{{- end }}

{{- define "seriatim.spark.executorProperties" -}}
spark.executor.instances {{ default 1 .pipeline.executors }}
spark.executor.cores {{ default 1 .pipeline.cores }}
spark.executor.memory {{ default .root.Values.spark.executorMemory .pipeline.executorMemory }}
spark.kubernetes.namespace {{ .root.Release.Namespace }}
spark.kubernetes.container.image {{ include "seriatim.image" (dict "root" .root "name" "spark") }}
spark.kubernetes.container.image.pullPolicy {{ .root.Values.images.pullPolicy }}
{{- with .root.Values.images.pullSecrets }}
spark.kubernetes.container.image.pullSecrets {{ join "," . }}
{{- end }}
spark.kubernetes.executor.podTemplateFile /etc/seriatim/spark/executor.yaml
spark.kubernetes.executor.podTemplateContainerName executor
{{- end }}

{{/* Template of pods that Spark makes. Also takes "container", its name, and "token", whether it asks the API. */}}
{{- define "seriatim.spark.template" -}}
apiVersion: v1
kind: Pod
metadata:
  labels:
    {{- include "seriatim.spark.labels" . | nindent 4 }}
spec:
  automountServiceAccountToken: {{ .token }}
  securityContext:
    {{- include "seriatim.podSecurity" .root | nindent 4 }}
  {{- include "seriatim.spark.placement" . | nindent 2 }}
  containers:
    - name: {{ .container }}
      {{- if eq .container "driver" }}
      resources:
        {{- toYaml (default .root.Values.spark.resources .pipeline.resources) | nindent 8 }}
      {{- end }}
      securityContext:
        {{- include "seriatim.containerSecurity" .root | nindent 8 }}
      volumeMounts:
        {{- include "seriatim.spark.mounts" . | nindent 8 }}
  volumes:
    {{- include "seriatim.spark.volumes" . | nindent 4 }}
{{- end }}
