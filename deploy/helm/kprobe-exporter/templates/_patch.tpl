{{- /*
"component" applies the JSON patches of the chosen components to one manifest of the base, and returns it as YAML.
Its arguments: the root context, the manifest's file name without its suffix.
"patch" applies a list of JSON patches, of which `add` and `replace` are used, to an object.
*/ -}}

{{- define "component" -}}
{{-   $root := index . 0 -}}
{{-   $file := printf "%s.yaml" (index . 1) -}}
{{-   $object := $root.Files.Get (printf "files/base/%s" $file) | fromYaml -}}
{{-   range $root.Values.components | sortAlpha -}}
{{-     $text := $root.Files.Get (printf "files/components/%s/%s" . $file) -}}
{{-     $text = $text | replace "kprobe-exporter-tls" $root.Values.tls.secretName -}}
{{-     $text = $text | replace "kprobe-exporter-otlp" $root.Values.otlp.secretName -}}
{{-     include "patch" (list $object (fromYamlArray $text)) -}}
{{-   end -}}
{{-   $_ := set $object.metadata "namespace" $root.Release.Namespace -}}
{{-   toYaml $object -}}
{{- end -}}

{{- define "patch" -}}
{{-   $object := index . 0 -}}
{{-   range $patch := index . 1 -}}
{{-     $keys := splitList "/" (trimPrefix "/" $patch.path) -}}
{{-     $node := $object -}}
{{-     $parent := dict -}}
{{-     range $key := initial $keys -}}
{{-       $parent = $node -}}
{{-       $node = index $node (kindIs "slice" $node | ternary (atoi $key) $key) -}}
{{-     end -}}
{{-     if eq (last $keys) "-" -}}
{{-       $_ := set $parent (last (initial $keys)) (append $node $patch.value) -}}
{{-     else -}}
{{-       $_ := set $node (last $keys) $patch.value -}}
{{-     end -}}
{{-   end -}}
{{- end -}}
