{{- define "pglimit.name" -}}
{{- $name := .Release.Name -}}
{{- if not (contains "pglimit" $name) }}{{ $name = printf "%s-pglimit" $name }}{{ end -}}
{{- .Values.fullnameOverride | default $name | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "pglimit.selector" -}}
app.kubernetes.io/name: pglimit
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{- define "pglimit.labels" -}}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{ include "pglimit.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- define "pglimit.image" -}}
{{ .Values.image.repository }}{{ with .Values.image.digest }}@{{ . }}{{ else }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end }}
{{- end -}}

{{- /* Seconds from SIGTERM to the end: the drain, and ten to send telemetry. */ -}}
{{- define "pglimit.grace" -}}
{{- $drain := ternary (int .Values.drain.timeoutSeconds) 10 (eq .Values.mode "serve") -}}
{{- add (int .Values.drain.delaySeconds) $drain 10 -}}
{{- end -}}

{{- define "pglimit.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "pglimit.security" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{- /* What values contradict each other, or are missing. */ -}}
{{- define "pglimit.check" -}}
{{- with .Values -}}
{{- if eq .mode "serve" -}}
{{- if and .noAuth (or .tokens.secret .tls.clientCA) }}{{ fail "noAuth is true: set tokens.secret to \"\" and tls.clientCA to false, or leave noAuth out" }}{{ end -}}
{{- if not (or .noAuth .tokens.secret .tls.clientCA) }}{{ fail "no caller could be known: set tokens.secret or tls.clientCA, or noAuth to let everybody in" }}{{ end -}}
{{- if and .serviceMonitor.enabled .tls.secret (not .serviceMonitor.tlsConfig) }}{{ fail "serviceMonitor.tlsConfig is empty: with tls.secret it has to name the serverName, and the ca" }}{{ end -}}
{{- else -}}
{{- if .policies }}{{ fail "policies are for mode serve: in mode ratelimit, set rateLimitConfig" }}{{ end -}}
{{- if .extraArgs }}{{ fail "extraArgs are for mode serve: in mode ratelimit, set env" }}{{ end -}}
{{- if not (or .rateLimitConfig (eq (toString .env.CONFIG_TYPE) "GRPC_XDS_SOTW")) }}{{ fail "rateLimitConfig is empty: mode ratelimit needs a configuration" }}{{ end -}}
{{- end -}}
{{- range $name, $_ := .env }}
{{- if has $name (list "DATABASE_URL" "DATABASE_URL_FILE" "PGLIMIT_KEY_SECRET" "PGLIMIT_KEY_SECRET_FILE" "PGPASSWORD") }}{{ fail (printf "env.%s is for a secret, which no variable has here: use database.secret or keySecret.secret" $name) }}{{ end -}}
{{- end -}}
{{- range .extraArgs }}
{{- if regexMatch "^--(database-url|http|grpc|admin|tokens|no-auth|tls-.*|policies|ratelimit-config|drain-.*|access-log|trusted-proxies|embedded|data-dir|json)(=|$)" . }}{{ fail (printf "extraArgs has %s, which other values set, or which is not for a pod" .) }}{{ end -}}
{{- end -}}
{{- if and .tls.clientCA (not .tls.secret) }}{{ fail "tls.clientCA needs tls.secret" }}{{ end -}}
{{- if and .autoscaling.enabled (gt (int .autoscaling.minReplicas) (int .autoscaling.maxReplicas)) }}{{ fail "autoscaling.minReplicas is above maxReplicas" }}{{ end -}}
{{- if and .autoscaling.enabled (not (dig "requests" "cpu" "" .resources)) }}{{ fail "autoscaling.enabled needs resources.requests.cpu" }}{{ end -}}
{{- end -}}
{{- end -}}
