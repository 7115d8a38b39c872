#!/usr/bin/env bash
# One node's part of stage_environment in common.sh: `stage.sh check|prepare|unpack FOLDER`.

set -e
folder=$2
case $1 in
    check)
        # In /tmp anybody could have made a folder of that name.
        [[ -O $folder && ! -L $folder && -e $folder/complete ]]
        ;;
    prepare)
        if [[ -e $folder || -L $folder ]]; then
            if [[ ! -O $folder || -L $folder ]]; then
                echo "longmix: error: $folder on $SLURMD_NODENAME is not yours: set LONGMIX_LOCAL_DISK to another folder" >&2
                exit 1
            fi
            rm -rf "$folder"
        fi
        mkdir --mode=700 "$folder"
        ;;
    unpack)
        tar --extract --file "$folder/environment.tar" --directory "$folder"
        rm "$folder/environment.tar"
        mkdir "$folder/bin"
        # Not .venv/bin/longmix, whose first line names the Python of the folder that it was installed into.
        printf '#!/usr/bin/env bash\nexec "%s/.venv/bin/python" -m longmix.trainer "$@"\n' "$folder" >"$folder/bin/longmix"
        chmod +x "$folder/bin/longmix"
        touch "$folder/complete"
        ;;
esac
