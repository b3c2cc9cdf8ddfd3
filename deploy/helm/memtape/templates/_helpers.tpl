{{/* Name of everything of this release. */}}
{{- define "memtape.fullname" -}}
{{- if contains "memtape" .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-memtape" .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Labels that never change over the life of a release. */}}
{{- define "memtape.selector" -}}
app.kubernetes.io/name: memtape
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "memtape.labels" -}}
{{ include "memtape.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "memtape.image" -}}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) | quote -}}
{{- end -}}

{{/* Paths of nodes that no pod of a tenant mounts: what the agent mounts, and those of the values. */}}
{{- define "memtape.closedPaths" -}}
{{- $own := list .Values.agent.tapeDir .Values.agent.stateDir .Values.tls.agentDir -}}
{{- $closed := list -}}
{{- range concat $own .Values.admission.closedPaths }}{{ $closed = append $closed (clean .) }}{{ end -}}
{{- toJson $closed -}}
{{- end -}}

{{/* The names of the coordinator's service, from short to whole, and those of the values. */}}
{{- define "memtape.hosts" -}}
{{- $service := printf "%s-coordinator" (include "memtape.fullname" .) -}}
{{- $space := printf "%s.%s" $service .Release.Namespace -}}
{{- $names := list $service $space (printf "%s.svc" $space) (printf "%s.svc.cluster.local" $space) -}}
{{- concat $names .Values.coordinator.hosts | join "," -}}
{{- end -}}

{{/* Where agents find coordinators: the service of the only one, or all pods of several. */}}
{{- define "memtape.coordinators" -}}
{{- $scheme := include "memtape.scheme" . -}}
{{- $name := printf "%s-coordinator" (include "memtape.fullname" .) -}}
{{- $port := int .Values.coordinator.port -}}
{{- if .Values.coordinator.cluster.url -}}
{{- $urls := list -}}
{{- range until (int .Values.coordinator.cluster.replicas) -}}
{{- $urls = append $urls (printf "%s://%s-%d.%ss.%s.svc:%d" $scheme $name . $name $.Release.Namespace $port) -}}
{{- end -}}
{{- join "," $urls -}}
{{- else -}}
{{- printf "%s://%s:%d" $scheme $name $port -}}
{{- end -}}
{{- end -}}

{{/* https where the coordinator has a certificate. */}}
{{- define "memtape.scheme" -}}
{{- if .Values.tls.coordinatorSecret }}https{{ else }}http{{ end -}}
{{- end -}}
