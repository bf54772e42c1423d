//! Programs that run ssh, unmodified, over rdsh: rsync, git, tar and borg, and the command lines of syncoid and
//! zfs-autobackup with a stand-in for zfs. Every byte is compared. With `RDPIPE_FULL=1` the trees have 10,000 files.

use std::os::unix::fs::symlink;

use super::script;
use crate::support::{
    is_full,
    programs::{built, hosts::Network},
    skip,
};

/// Runs a script of bash on ctl, which must succeed. `$H` is the home of h1, of which the script compares the files.
#[track_caller]
fn succeeds(network: &Network, line: &str) -> String {
    let home = network.file("h1", "");
    let line = format!(
        "set -euo pipefail; H={}; export LC_ALL=C\n{line}",
        home.display()
    );
    let end = script(network, false, &line).start().end();
    let out = String::from_utf8_lossy(&end.stdout).into_owned();
    assert_eq!(end.code(), 0, "{line}\n{out}\n{}", end.stderr);
    out
}

/// Returns true if a program is missing. With `RDPIPE_FULL=1`, whose setup installs all, the test fails.
#[track_caller]
fn lacks(program: &str) -> bool {
    let found = std::process::Command::new("sh")
        .args(["-c", &format!("command -v {program}")])
        .output();
    let is_there = found.is_ok_and(|found| found.status.success());
    assert!(
        is_there || !is_full(),
        "there is no {program}; scripts/setup --full installs it"
    );
    if !is_there {
        skip(&format!("there is no {program}"));
    }
    !is_there
}

/// Makes a tree with many small files, a large one, links, modes, an extended attribute and an ACL.
fn tree() -> String {
    let (files, large) = if is_full() { (10_000, 200) } else { (500, 20) };
    format!(
        "mkdir -p tree/sub/empty; for ((i = 0; i < {files}; i++)); do echo $i >tree/sub/$i; done
         head -c {large}M /dev/urandom >tree/large; ln tree/sub/7 tree/hard; ln -s sub/8 tree/soft
         chmod 640 tree/sub/9; touch -d 2001-02-03 tree/sub/10; setfattr -n user.x -v y tree/large
         setfacl -m u:guest:r tree/sub/11 2>/dev/null || setfacl -m u:1:r tree/sub/11
         truncate -s 3M tree/sparse; printf 'a\\nb' >'tree/a name '\n"
    )
}

#[test]
fn rsync_pushes_and_pulls_trees() {
    let Some(network) = Network::new(1) else {
        return;
    };
    let line = "rsync -aHAX --delete -e \"$R\" tree/ h1:copy/
        diff -r tree $H/copy
        rm tree/sub/3; echo new >tree/sub/4; echo more >>tree/large; echo stray >$H/copy/stray
        rsync -aHAX --delete -e \"$R\" tree/ h1:copy/
        diff -r tree $H/copy
        [[ -z $(rsync -aHAXn --delete --itemize-changes -e \"$R\" tree/ h1:copy/) ]]
        rsync -aHAX --delete -e \"$R\" h1:copy/ back/
        [[ -z $(rsync -aHAXnc --delete --itemize-changes tree/ back/) ]]
        [[ $(stat -c %h back/hard) == 2 ]]; getfattr -n user.x back/large | grep -q y
        status=0; rsync -a -e \"$R\" h1:missing/ none/ 2>/dev/null || status=$?; [[ $status == 23 ]]";
    succeeds(&network, &(tree() + line));
}

#[test]
fn git_clones_fetches_and_pushes() {
    if lacks("git") {
        return;
    }
    let Some(network) = Network::new(1) else {
        return;
    };
    let line = "export GIT_SSH_COMMAND=$R GIT_CONFIG_GLOBAL=/dev/null GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b
        export GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b HOME=$PWD
        git init -q --bare $H/hub.git; git -C $H/hub.git symbolic-ref HEAD refs/heads/main
        git init -q -b main work; cp -r tree/. work; rmdir work/sub/empty; git -C work add .; git -C work commit -qm first
        git -C work push -q h1:hub.git main
        git clone -q ssh://root@h1:22$H/hub.git clone; diff -r -x .git work clone
        echo change >>work/large; git -C work commit -qam second; git -C work push -q h1:hub.git main
        git -C clone fetch -q; git -C clone merge -q --ff-only; diff -r -x .git work clone
        git -C $H/hub.git fsck --full; git -C clone fsck --full
        ! git clone -q h1:missing.git none 2>said; grep -q 'not appear to be a git repository' said";
    succeeds(&network, &(tree() + line));
}

#[test]
fn tar_goes_both_ways() {
    let Some(network) = Network::new(1) else {
        return;
    };
    let line = "tar -c tree | $R h1 'tar -x'; diff -r tree $H/tree
        mkdir back; $R h1 'tar -c tree' | tar -x -C back; diff -r tree back/tree
        status=0; $R h1 'tar -c missing' 2>/dev/null | tar -t >/dev/null || status=$?; [[ $status == 2 ]]";
    succeeds(&network, &(tree() + line));
}

#[test]
fn borg_creates_checks_and_extracts() {
    if lacks("borg") {
        return;
    }
    let Some(network) = Network::new(1) else {
        return;
    };
    let line = "export BORG_RSH=$R BORG_BASE_DIR=$PWD BORG_PASSPHRASE=x BORG_REPO=ssh://h1/./repo
        borg init -e repokey; borg create ::first tree; rm tree/sub/1; borg create ::second tree
        borg check --verify-data; borg delete ::first; borg compact
        mkdir back; cd back; borg extract ::second; diff -r ../tree tree";
    succeeds(&network, &(tree() + line));
}

/// The stand-in for zfs: `send` writes known bytes, and `receive` stores what it reads.
const ZFS: &str = "case \"$*\" in
    *send*) seq 2000000 ;;
    *rec*) cat >\"$HOME/received\" ;;
    *exists*) echo 'cannot open: dataset does not exist' >&2; exit 1 ;;
    *) printf 'tank/media\\t%s\\n' \"$*\" ;;
esac";

/// Runs the lines that syncoid and zfs-autobackup run, over a link named `ssh`.
#[test]
fn the_command_lines_of_syncoid_and_zfs_autobackup_work() {
    let Some(network) = Network::new(1) else {
        return;
    };
    network.install("h1", "zfs", ZFS);
    network.install("ctl", "zfs", ZFS);
    let links = network.file("ctl", "links");
    std::fs::create_dir(&links).unwrap();
    symlink(built("rdpipe"), links.join("ssh")).unwrap();
    let line = format!(
        "PATH={}:{}:$PATH; export HOME=$PWD; C='-F {}'; seq 2000000 >sent
        socket=$PWD/syncoid-root@h1
        ssh $C -M -S $socket -o ControlPersist=1m root@h1 exit
        ssh $C -S $socket root@h1 echo -n
        ssh $C -S $socket root@h1 zfs get -Hpd 1 -t snapshot guid,creation \"'tank/media'\"
        zfs send -w 'tank/media'@'snap' | ssh $C -S $socket root@h1 ' zfs receive  -s -F '\"'\"'pool/media'\"'\"' 2>&1'
        cmp sent $H/received
        ssh $C -S $socket root@h1 ' zfs send -I tank/media@a tank/media@b' | zfs receive -s -F pool/media
        cmp sent received
        status=0; ssh $C -S $socket root@h1 zfs exists 2>&1 || status=$?; [[ $status == 1 ]]
        ssh $C root@h1 -S $socket -O exit 2>/dev/null
        rm received $H/received
        ssh $C root@h1 'zfs get -H -o property,value all tank/media' >/dev/null
        ssh $C root@h1 'zfs send --large-block --embed --verbose --parsable tank/media@b' | zfs recv -u -x canmount -v -s pool/media
        cmp sent received
        zfs send -L -e tank/media@b | ssh $C root@h1 'zfs recv -u -v -s pool/media | cat'
        cmp sent $H/received",
        links.display(),
        network.own("ctl/bin").display(),
        network.own("ssh_config").display(),
    );
    let out = succeeds(&network, &line);
    assert!(
        out.contains("tank/media\tget -Hpd 1 -t snapshot guid,creation tank/media"),
        "{out}"
    );
    assert!(out.contains("dataset does not exist"), "{out}");
}
