_kprobe_exporter_completion() {
    local line="${COMP_LINE:0:COMP_POINT}" type value
    local word="${line##*[[:space:]]}" known=""
    [[ $word == *:* && $COMP_WORDBREAKS == *:* ]] && known="${word%:*}:"
    COMPREPLY=()
    while IFS=, read -r type value; do
        case $type in
            dir) compopt -o dirnames ;;
            file) compopt -o default ;;
            plain)
                COMPREPLY+=("${value#"$known"}")
                [[ $value == *: ]] && compopt -o nospace
                ;;
        esac
    done < <(COMP_LINE="$line" _KPROBE_EXPORTER_COMPLETE=bash_complete "$1")
}

complete -F _kprobe_exporter_completion kprobe-exporter
