//! Servers of files.

use super::{LISTENING, Service};

/// A function of bash that makes a tree of files of many sizes, of this many bytes and a few more, in a folder.
pub(super) const TREE: &str = "\
tree() {\n\
    mkdir -p $1/small $1/deep/er\n\
    head -c $2 /dev/urandom >$1/large\n\
    for i in $(seq 100); do head -c $((i * i * 7 % 60000)) /dev/urandom >$1/small/$i; done\n\
    : >$1/deep/empty\n\
    printf x >$1/deep/er/byte\n\
}\n";

/// Returns an rsync daemon with the modules `tree`, which has a tree with a file of `bytes`, and `back`, which is
/// empty.
pub fn rsync(address: &str, bytes: usize) -> Service {
    Service {
        name: "rsync",
        port: 8730,
        script: format!(
            "{TREE}\
             tree tree {bytes}\n\
             mkdir back\n\
             printf '%s\\n' 'use chroot = no' 'read only = no' \"[tree]\" \"path = $PWD/tree\" \"[back]\" \"path = $PWD/back\" >rsyncd.conf\n\
             exec rsync --daemon --no-detach --config rsyncd.conf --address {address} --port 8730\n"
        ),
        ready: LISTENING,
        stop: "TERM",
        is_root: false,
    }
}

/// Returns a daemon of the git protocol with `repository.git`, whose tree has a file of `bytes` and which takes pushes.
/// Each connection is a process.
pub fn git(address: &str, bytes: usize) -> Service {
    Service {
        name: "git",
        port: 9418,
        script: format!(
            "{TREE}\
             git config --global user.name tester; git config --global user.email tester@localhost\n\
             git init -q -b main work\n\
             tree work {bytes}\n\
             for i in 1 2 3; do date +%N$i >work/time; git -C work add -A; git -C work commit -qm \"change $i\"; done\n\
             git clone -q --bare work repository.git\n\
             exec git daemon --base-path=. --export-all --enable=receive-pack --reuseaddr --listen={address} --port=9418\n"
        ),
        ready: LISTENING,
        stop: "TERM",
        is_root: false,
    }
}
