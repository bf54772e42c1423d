//! Servers of files and their clients.

use std::time::Duration;

use super::{
    rig::{Rig, lacks},
    ways::Way,
};
use crate::support::programs::servers;

/// A function of bash that prints one digest of all files in a folder, and of their names.
const DIGEST: &str = "digest() { (cd $1; find . -type f -not -path './.git/*' -print0 | sort -z | xargs -0 sha256sum) | sha256sum; }\n";

/// Copies a tree from an rsync daemon and back to it.
pub(crate) fn rsync(rig: &Rig, way: Way) {
    if lacks(&["rsync"]) {
        return;
    }
    let server = rig.serve(&servers::rsync(way.address(), rig.sizes.bytes));
    let tunnel = rig.open(way, 8730);
    let script = format!(
        "{DIGEST}\
         rsync -a rsync://$HOST:$PORT/tree/ got/\n\
         digest got\n\
         rsync -r got/ rsync://$HOST:$PORT/back/\n\
         rsync -rnc --itemize-changes got/ rsync://$HOST:$PORT/back/\n"
    );
    let said = tunnel.client(Duration::ZERO, &script);
    let beside = format!("{DIGEST} digest tree; digest back\n");
    let beside = rig.beside(server.directory(), &beside);
    assert_eq!(beside, said.repeat(2));
    tunnel.close();
    server.stop();
}

/// Clones a repository by the git protocol, and pushes a change back.
pub(crate) fn git(rig: &Rig, way: Way) {
    if lacks(&["git"]) {
        return;
    }
    let server = rig.serve(&servers::git(way.address(), rig.sizes.bytes / 5));
    let tunnel = rig.open(way, 9418);
    let script = format!(
        "{DIGEST}\
         export HOME=$PWD GIT_AUTHOR_NAME=t GIT_AUTHOR_EMAIL=t@t GIT_COMMITTER_NAME=t GIT_COMMITTER_EMAIL=t@t\n\
         git clone -q git://$HOST:$PORT/repository.git work\n\
         digest work\n\
         cd work\n\
         git fsck --full --strict --no-progress\n\
         head -c {} /dev/urandom >change; git add change; git commit -qm change\n\
         git push -q origin HEAD:refs/heads/back\n\
         git rev-parse HEAD HEAD^{{tree}}\n",
        rig.sizes.bytes / 5
    );
    let said = tunnel.client(Duration::ZERO, &script);
    // The repository is that of another user.
    let beside = format!(
        "{DIGEST} digest work; export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0=*\n\
         git -C repository.git fsck --full --strict --no-progress\n\
         git -C repository.git rev-parse back back^{{tree}}\n"
    );
    assert_eq!(rig.beside(server.directory(), &beside), said);
    tunnel.close();
    server.stop();
}
