#!/usr/bin/env bash
# One node's part of stage_environment in common.sh: `stage.sh check|prepare|unpack|discard FOLDER [MADE]`. MADE is this job's own,
# and becomes FOLDER when it is whole, unless another job's has.

set -e
folder=$2 made=$3

# is_mine FOLDER: in /tmp anybody could have made a folder of that name.
is_mine() { [[ -O $1 && ! -L $1 ]]; }

is_there() { is_mine "$folder" && [[ -e $folder/complete ]]; }

# remove FOLDER: what a job has left that did not come to its end.
remove() {
    [[ -e $1 || -L $1 ]] || return 0
    if ! is_mine "$1"; then
        echo "longmix: error: $1 on $SLURMD_NODENAME is not yours: set LONGMIX_LOCAL_DISK to another folder" >&2
        exit 1
    fi
    rm -rf "$1"
}

case $1 in
    check)
        is_there
        ;;
    prepare)
        is_there || remove "$folder"
        remove "$made"
        mkdir --mode=700 "$made"
        ;;
    discard)
        remove "$made"
        ;;
    unpack)
        if ! is_there; then
            # Its name ends in the archive's size and the user: one that was still being written has another.
            size=${folder%-*}
            if [[ $(stat --format=%s "$made/environment.tar") != "${size##*-}" ]]; then
                echo "longmix: error: $made/environment.tar on $SLURMD_NODENAME is no whole copy" >&2
                exit 1
            fi
            tar --extract --file "$made/environment.tar" --directory "$made"
            rm "$made/environment.tar"
            mkdir "$made/bin"
            # Not .venv/bin/longmix, whose first line names the Python of the folder that it was installed into.
            printf '#!/usr/bin/env bash\nexec "%s/.venv/bin/python" -P -m longmix.trainer "$@"\n' "$folder" >"$made/bin/longmix"
            chmod +x "$made/bin/longmix"
            touch "$made/complete"
            mv --no-target-directory "$made" "$folder" 2>/dev/null || is_there
        fi
        remove "$made"
        ;;
esac
