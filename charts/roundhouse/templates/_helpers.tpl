{{- define "roundhouse.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- /* The prefix of all names; 50 characters leave room for "-operator" and a StatefulSet's suffixes. */ -}}
{{- define "roundhouse.fullname" -}}
{{- $name := include "roundhouse.name" . -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- /* Labels that identify pods, never to change: (list . "component") */ -}}
{{- define "roundhouse.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ include "roundhouse.name" $root }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{- /* (list . "component") */ -}}
{{- define "roundhouse.labels" -}}
{{- $root := index . 0 -}}
{{ include "roundhouse.selector" . }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
app.kubernetes.io/part-of: roundhouse
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" }}
{{- with $root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- /* Name, namespace, labels and annotations: (list . "component" "name" [annotations]) */ -}}
{{- define "roundhouse.metadata" -}}
{{- $root := index . 0 -}}
{{- $own := dict -}}
{{- if gt (len .) 3 -}}{{- $own = index . 3 -}}{{- end -}}
name: {{ index . 2 }}
namespace: {{ $root.Release.Namespace }}
labels:
  {{- include "roundhouse.labels" (list $root (index . 1)) | nindent 2 }}
{{- with merge (dict) $own $root.Values.commonAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- /* An image reference: (list . image) */ -}}
{{- define "roundhouse.image" -}}
{{- $root := index . 0 -}}
{{- $image := index . 1 -}}
{{- /* An image that is not ours names its registry itself. */ -}}
{{- with ternary $image.registry $root.Values.image.registry (hasKey $image "registry") }}{{ . }}/{{ end -}}
{{- $image.repository -}}
{{- if $image.digest }}@{{ $image.digest }}{{ else }}:{{ $image.tag | default $root.Values.image.tag | default $root.Chart.AppVersion }}{{ end -}}
{{- end -}}

{{- /* (list . "operator"|"gateway") */ -}}
{{- define "roundhouse.serviceAccountName" -}}
{{- $root := index . 0 -}}
{{- $account := (index $root.Values (index . 1)).serviceAccount -}}
{{- if $account.create -}}
{{- $account.name | default (printf "%s-%s" (include "roundhouse.fullname" $root) (index . 1)) -}}
{{- else -}}
{{- $account.name | default "default" -}}
{{- end -}}
{{- end -}}

{{- /* What keeps this release's keys in Redis apart from another's. */ -}}
{{- define "roundhouse.installation" -}}
{{ .Release.Namespace }}/{{ .Release.Name }}
{{- end -}}

{{- define "roundhouse.redisUrl" -}}
{{- if .Values.valkey.enabled -}}
redis://{{ include "roundhouse.fullname" . }}-valkey.{{ .Release.Namespace }}.svc:6379/0
{{- else -}}
{{- ternary "rediss" "redis" .Values.externalRedis.tls }}://{{ required "externalRedis.host is needed when valkey.enabled is false" .Values.externalRedis.host }}:{{ .Values.externalRedis.port }}/0
{{- end -}}
{{- end -}}

{{- define "roundhouse.redisSecret" -}}
{{- if .Values.valkey.enabled -}}
{{- .Values.valkey.existingSecret | default (printf "%s-valkey" (include "roundhouse.fullname" .)) -}}
{{- else -}}
{{- required "externalRedis.existingSecret is needed when valkey.enabled is false" .Values.externalRedis.existingSecret -}}
{{- end -}}
{{- end -}}

{{- /* The credentials of operator and gateway. */ -}}
{{- define "roundhouse.redisEnv" -}}
{{- if and (not .Values.valkey.enabled) .Values.externalRedis.username }}
- name: RH_REDIS_USERNAME
  value: {{ .Values.externalRedis.username | quote }}
{{- end }}
- name: RH_REDIS_PASSWORD
  valueFrom:
    secretKeyRef:
      name: {{ include "roundhouse.redisSecret" . }}
      key: {{ ternary "password" .Values.externalRedis.passwordKey .Values.valkey.enabled }}
{{- end -}}

{{- define "roundhouse.podSecurityContext" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "roundhouse.securityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{- /* Labels, annotations of a pod template: (list . "component" values) */ -}}
{{- define "roundhouse.podMetadata" -}}
{{- $root := index . 0 -}}
{{- $values := index . 2 -}}
labels:
  {{- include "roundhouse.labels" (list $root (index . 1)) | nindent 2 }}
  {{- with $values.podLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with merge (dict) (default dict $values.podAnnotations) $root.Values.commonAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- /* Where a pod may run: values */ -}}
{{- define "roundhouse.placement" -}}
{{- with .nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .topologySpreadConstraints }}
topologySpreadConstraints:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end -}}

{{- define "roundhouse.pullSecrets" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end -}}

{{- /* A PodDisruptionBudget: (list . "component" values.pdb) */ -}}
{{- define "roundhouse.pdb" -}}
{{- $root := index . 0 -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  {{- include "roundhouse.metadata" (list $root (index . 1) (printf "%s-%s" (include "roundhouse.fullname" $root) (index . 1))) | nindent 2 }}
spec:
  maxUnavailable: {{ (index . 2).maxUnavailable }}
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels:
      {{- include "roundhouse.selector" (list $root (index . 1)) | nindent 6 }}
{{- end -}}

{{- /* Who may scrape metrics. */ -}}
{{- define "roundhouse.metricsPeers" -}}
{{- if .Values.networkPolicies.metricsFrom -}}
{{ toYaml .Values.networkPolicies.metricsFrom }}
{{- else -}}
- namespaceSelector: {}
{{- end -}}
{{- end -}}
