//! Programs that run ssh, over rdsh between guests: every byte goes over RDMA, and is compared.

use crate::support::programs::hosts::Network;

/// Runs on h1 with h2. `$R` is rdsh, which refuses any other transport.
const SCRIPT: &str = "set -euo pipefail
cd \"$(mktemp -d)\"
trap 'rm -rf \"$PWD\"' EXIT
mkdir tree
for i in {1..100}; do echo \"$i\" >\"tree/$i\"; done
head -c 5M /dev/urandom >tree/large
sums='find . -type f -not -path \"*/.git/*\" | LC_ALL=C sort | xargs cksum'
there=$($R h2 'mktemp -d')
rsync -a --delete -e \"$R\" tree/ \"h2:$there/copy/\"
diff <(cd tree; eval \"$sums\") <($R h2 \"cd $there/copy; $sums\")
echo more >>tree/large
rsync -a --delete -e \"$R\" tree/ \"h2:$there/copy/\"
rsync -a -e \"$R\" \"h2:$there/copy/\" back/
diff -r tree back
tar -c tree | $R h2 \"tar -x -C $there\"
$R h2 \"cd $there; tar -c tree\" | tar -d
if command -v git >/dev/null; then
    export GIT_SSH_COMMAND=$R HOME=$PWD
    git config --global user.name a; git config --global user.email a@b
    $R h2 \"git init -q --bare $there/hub.git\"
    git init -q -b main work; cp tree/* work; git -C work add .; git -C work commit -qm first
    git -C work push -q \"h2:$there/hub.git\" main
    git clone -q -b main \"h2:$there/hub.git\" clone
    diff -r -x .git work clone
fi
status=0; $R h2 'exit 7' || status=$?; [[ $status == 7 ]]
$R h2 \"rm -r $there\"
echo all is the same
";

#[test]
fn rsync_git_and_tar_go_over_rdma() {
    let Some(network) = Network::of_guests() else {
        return;
    };
    let config = network.own("ssh_config");
    // An emulated processor needs a long timeout. The connection that `scripts/guests` shares is one of ctl.
    let rdsh = format!(
        "rdsh --timeout 120 --transport rdma -F {} -S none",
        config.display()
    );
    let path = network.write("h1", "rdsh.sh", format!("R='{rdsh}'\n{SCRIPT}").as_bytes());
    let end = network
        .ssh("h1", &format!("bash {}", path.display()))
        .start()
        .end();
    end.exits(0);
    assert_eq!(end.stdout, b"all is the same\n", "{}", end.stderr);
}
