//! The units of systemd: the commands of the docs, run literally on an empty server that systemd boots.

use std::{fs, process::Command};

use crate::support::{
    programs::{built, program},
    skip,
};

/// Boots systemd in namespaces, in an overlay of the root of this machine. It has no enabled units but `recipe.service`, which
/// runs DIR/recipe, and exits with the status of that. Arguments: DIR. Exits with 77 if this machine cannot do that.
const BOOT: &str = r#"
set -euo pipefail
trap 'exit 77' ERR
dir=$1 root=$1/root
mount --make-rprivate /
mount -t tmpfs tmpfs "$dir/layers"
mkdir "$dir/layers/upper" "$dir/layers/work"
mount -t overlay overlay -o "lowerdir=/,upperdir=$dir/layers/upper,workdir=$dir/layers/work" "$root"
cp -a "$dir/bin/." "$root/usr/local/bin/"
mount -t proc proc "$root/proc"
mount -t sysfs sysfs "$root/sys"
mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
for name in run tmp dev etc/systemd/system; do mount -t tmpfs tmpfs "$root/$name"; done
for name in null zero full random urandom tty; do touch "$root/dev/$name"; mount --bind "/dev/$name" "$root/dev/$name"; done
ln -s /proc/self/fd "$root/dev/fd"
mkdir -p "$root/dev/shm" "$root/mnt/recipe"
mount --bind "$dir" "$root/mnt/recipe"
cp "$dir"/units/* "$root/etc/systemd/system/"
printf '127.0.0.1 localhost store\n' >"$root/etc/hosts"
ip link set lo up
init=$(command -v /usr/lib/systemd/systemd /lib/systemd/systemd | head -n 1)
exec env -i container=test PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    chroot "$root" "$init" --unit=recipe.service --log-target=null --show-status=0
"#;

/// Puts BOOT into a cgroup and namespaces of its own. Arguments: DIR.
const UNSHARE: &str = r#"
group=$(findmnt -n -t cgroup2 -o TARGET | head -n 1)$(sed -n 's/^0:://p' /proc/self/cgroup)/rdpipe-unit-$$
mkdir "$group" || exit 77
(
    echo "$BASHPID" >"$group/cgroup.procs" || exit 77
    exec setpriv --pdeathsig KILL unshare --mount --pid --fork --kill-child --uts --ipc --net --cgroup bash "$1/boot" "$1"
)
status=$?
find "$group" -depth -type d -exec rmdir {} +
exit "$status"
"#;

const RECIPE_UNIT: &str = "\
[Unit]
SuccessAction=exit-force
FailureAction=exit-force
[Service]
Type=oneshot
Environment=HOME=/root
WorkingDirectory=/root
ExecStart=/bin/bash -eux /mnt/recipe/recipe
StandardOutput=file:/mnt/recipe/said
StandardError=inherit
";

/// A service on port 5432, which is what psql asks for.
const DATABASE: [(&str, &str); 2] = [
    (
        "db.socket",
        "[Socket]\nListenStream=127.0.0.1:5432\nAccept=yes\n",
    ),
    (
        "db@.service",
        "[Service]\nExecStart=/bin/echo a row\nStandardInput=socket\n",
    ),
];

/// Runs the commands that DOCUMENT has for the host `store` as root, and then those of CLIENT, between BEFORE and AFTER.
#[track_caller]
fn boot(document: &str, unit: &str, client: &str, before: &str, after: &str) {
    let text = fs::read_to_string(document).expect(document);
    let of = |prompt: &str| {
        let lines = text.lines().filter_map(|line| line.strip_prefix(prompt));
        lines.map(str::trim).collect::<Vec<_>>()
    };
    let commands = of("store# ");
    let head = fs::read_to_string(format!("contrib/{unit}.service")).expect("the unit");
    let in_head = head.lines().filter_map(|line| line.strip_prefix("#   "));
    assert_eq!(in_head.collect::<Vec<_>>(), commands, "the head of {unit}");
    // The block ends with the first command of the client.
    let block = text
        .split_once("store# systemctl enable")
        .expect("a command");
    let first = block.1.lines().nth(1).expect("a line of the client");
    let first = first.strip_prefix(client).expect("the client").trim();

    let place = tempfile::tempdir().unwrap();
    let dir = place.path();
    for name in ["root", "layers", "bin", "units"] {
        fs::create_dir(dir.join(name)).unwrap();
    }
    for name in ["rdcp", "rdforward"] {
        fs::copy(built(name), dir.join("bin").join(name)).unwrap();
    }
    for (name, unit) in DATABASE {
        fs::write(dir.join("units").join(name), unit).unwrap();
    }
    fs::write(dir.join("units/recipe.service"), RECIPE_UNIT).unwrap();
    fs::write(dir.join("boot"), BOOT).unwrap();
    let contents = head.replace('\'', "'\\''");
    let recipe = format!(
        "! id {unit} || userdel {unit}\n\
         ssh() {{ shift; (cd /root; sh -c \"$*\"); }}\n\
         mkdir -p /root/contrib; printf %s '{contents}' >/root/contrib/{unit}.service\n\
         {before}\n{}\n{first}\n{after}\n",
        commands.join("\n")
    );
    fs::write(dir.join("recipe"), recipe).unwrap();
    let end = program("/bin/bash", "a boot of systemd")
        .args(["-c", UNSHARE, "boot"])
        .args([dir])
        .start()
        .end();
    let said = fs::read_to_string(dir.join("said")).unwrap_or_default();
    // The shell says its first command before it runs it.
    if end.code() == 77 || said.is_empty() {
        return skip(&format!("no systemd boots here: {}", end.stderr));
    }
    assert_eq!(end.code(), 0, "{said}\n{}", end.stderr);
}

#[test]
fn the_unit_of_rdcp_takes_a_copy_when_the_docs_are_followed() {
    boot(
        "docs/copy.md",
        "rdcp",
        "daq1$ ",
        "mkdir /daq; echo data >/daq/c.evio",
        "cmp /daq/c.evio /srv/rdcp/c.evio\ntest \"$(stat -c %U /srv/rdcp/c.evio)\" = rdcp",
    );
}

#[test]
fn the_unit_of_rdforward_forwards_when_the_docs_are_followed() {
    boot(
        "docs/forward.md",
        "rdforward",
        "app1$ ",
        "printf '#!/bin/bash\\ncat </dev/tcp/$2/5432 >/root/got\\n' >/usr/local/bin/psql\n\
         chmod +x /usr/local/bin/psql; systemctl start db.socket",
        "test \"$(cat /root/got)\" = 'a row'",
    );
}

#[test]
fn the_units_of_systemd_verify() {
    verify_unit("rdcp", env!("CARGO_BIN_EXE_rdcp"));
    verify_unit("rdforward", env!("CARGO_BIN_EXE_rdforward"));
}

/// Verifies the unit of the program `name`, which is at `own`.
#[track_caller]
fn verify_unit(name: &'static str, own: &str) {
    let text = fs::read_to_string(format!("contrib/{name}.service")).expect("the unit");
    let command = text
        .lines()
        .find_map(|line| line.strip_prefix("ExecStart="));
    let words: Vec<_> = command.expect("a command").split_whitespace().collect();
    // `rdforward serve` has a help of its own.
    let mode = words[1..].iter().take_while(|word| !word.starts_with('-'));
    let help = program(own, name).args(mode).arg("--help").start().end();
    let help = String::from_utf8_lossy(&help.stdout).into_owned();
    for option in words.iter().filter(|word| word.starts_with('-')) {
        let option = option.split('=').next().unwrap();
        assert!(help.contains(option), "{option} is no option of {name}");
    }
    let place = tempfile::tempdir().unwrap();
    let copy = place.path().join(format!("{name}.service"));
    let command = format!("/usr/local/bin/{name}");
    fs::write(&copy, text.replace(&command, own)).unwrap();
    match Command::new("systemd-analyze")
        .arg("verify")
        .arg(&copy)
        .output()
    {
        Ok(verified) => {
            let found = String::from_utf8_lossy(&verified.stderr);
            assert!(verified.status.success(), "{found}");
        }
        Err(_) => skip("no systemd-analyze here"),
    }
}
