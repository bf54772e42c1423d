# Becomes the agent of rdpipe on this host: the rdpipe in PATH, the one that an earlier run left here, or one that it reads
# from stdin. src/ssh/deploy/mod.rs has the other end. A shell reads this text from stdin; lines before it set rd_policy,
# rd_protocol, rd_name, rd_bytes, rd_digest and rd_machine. It needs a POSIX shell and coreutils.

rd_say() {
    printf '\nrdpipe-deploy %s\n' "$(printf '%s' "$*" | tr '\n' ' ')"
}

rd_fail() {
    rd_say failed "$@"
    exit 3
}

# rd_check FOLDER [FILE]: prints why FILE in FOLDER must not be run or written, or nothing. Nobody but this user and root
# may change FOLDER, the folders above it, and FILE. "short": FILE is not complete.
rd_check() {
    rd_folder=$1 rd_file=${2:+$1/$2}
    set -- /
    while [ -n "${rd_folder#/}" ]; do
        set -- "$@" "$rd_folder"
        rd_folder=${rd_folder%/*}
    done
    LC_ALL=C ls -ldn "$@" ${rd_file:+"$rd_file"} |
        while read -r rd_mode rd_links rd_owner rd_group rd_size rd_month rd_day rd_time rd_path; do
            rd_safe=no
            case $rd_mode in
                # The second pattern: others may write there, but not rename what is not theirs.
                [-d]????-??-* | d????????[tT]*) rd_safe=yes ;;
                # An access control list, whose mask stands in place of the group's rights.
                d????w??-?+*) ;;
                # A group of this user alone, as many systems make it.
                d????w??-*) if [ "$rd_group" = "$rd_user" ]; then rd_safe=yes; fi ;;
            esac
            if [ "$rd_owner" != "$rd_user" ] && [ "$rd_owner" != 0 ]; then rd_safe=no; fi
            if [ "$rd_safe" = no ]; then
                echo "$rd_path (mode $rd_mode, user $rd_owner)"
                break
            fi
            case $rd_mode in
                -*) if [ "$rd_size" != "$rd_bytes" ]; then echo short; fi ;;
            esac
        done
}

# Keeps the three newest versions, and removes what uploads that were cut a day ago have left.
rd_tidy() {
    rd_kept=0 rd_now=$(date +%s)
    # Another upload may end meanwhile.
    ls -1t "$rd_home" 2>/dev/null | while read -r rd_entry; do
        case $rd_entry in
            new.*)
                rd_begun=${rd_entry#new.}
                if [ "${rd_begun%%.*}" -lt "$((rd_now - 86400))" ]; then rm -f "$rd_home/$rd_entry"; fi
                ;;
            [0-9]*-*)
                rd_kept=$((rd_kept + 1))
                if [ "$rd_kept" -gt 3 ]; then rm -rf "${rd_home:?}/$rd_entry"; fi
                ;;
        esac
    done
}

# Reads the program from stdin, and gives it its name when it is complete and runs here.
rd_receive() {
    if [ "$(uname -s) $(uname -m)" != "$rd_machine" ]; then rd_fail machine "$(uname -s) $(uname -m)"; fi
    rd_home=$rd_cache/rdpipe
    rd_said=$( (umask 077 && mkdir -p "$rd_home") 2>&1) || rd_fail store "$rd_said"
    rd_home=$(cd "$rd_home" && pwd -P) || rd_fail store "$rd_home cannot be opened"
    rd_said=$(rd_check "$rd_home")
    if [ -n "$rd_said" ]; then rd_fail unsafe "$rd_said"; fi
    rd_new=$(mktemp "$rd_home/new.$(date +%s).XXXXXX" 2>&1) || rd_fail store "$rd_new"
    trap 'rm -f "$rd_new"' EXIT
    trap 'exit 1' HUP INT TERM PIPE
    rd_say wanted "$rd_found"
    rd_said=$(head -c "$rd_bytes" 2>&1 >"$rd_new") || rd_fail store "$rd_said"
    rd_sum=$(sha256sum <"$rd_new" 2>&1) || rd_fail store "$rd_sum"
    if [ "${rd_sum%% *}" != "$rd_digest" ]; then rd_fail digest; fi
    chmod 700 "$rd_new"
    rd_said=$("$rd_new" "--agent=$rd_protocol" </dev/null 2>&1) || rd_fail run "$rd_said"
    rd_said=$( (umask 077 && mkdir -p "$rd_home/$rd_name") 2>&1) || rd_fail store "$rd_said"
    rd_said=$(mv -f "$rd_new" "$rd_home/$rd_name/rdpipe" 2>&1) || rd_fail store "$rd_said"
    trap - EXIT HUP INT TERM PIPE
    rd_tidy
    rd_say stored "$rd_home/$rd_name/rdpipe"
}

rd_main() {
    rd_found=$rd_policy
    if [ "$rd_policy" = auto ] && command -v rdpipe >/dev/null 2>&1; then
        if rdpipe "--agent=$rd_protocol" </dev/null >/dev/null 2>&1; then exec rdpipe --agent; fi
        rd_found=other
    fi
    rd_user=$(id -u)
    case ${XDG_CACHE_HOME-} in
        /*) rd_cache=$XDG_CACHE_HOME ;;
        *) rd_cache=${HOME-}/.cache ;;
    esac
    rd_folder=$(cd "$rd_cache/rdpipe/$rd_name" 2>/dev/null && pwd -P)
    if [ -n "$rd_folder" ] && [ -f "$rd_folder/rdpipe" ]; then
        rd_said=$(rd_check "$rd_folder" rdpipe)
        case $rd_said in
            '') exec "$rd_folder/rdpipe" --agent ;;
            short) ;;
            *) rd_fail unsafe "$rd_said" ;;
        esac
    fi
    rd_receive
    exec "$rd_home/$rd_name/rdpipe" --agent
}

rd_main
