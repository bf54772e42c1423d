//! rdsh between real hosts: beside ssh, and under the programs that run ssh.

mod cases;
mod ends;
mod programs;

use crate::support::programs::{
    Setup, built,
    hosts::{Network, SSH},
};

/// Returns a script of bash, to be run on ctl in a directory of its own. `$R` in it is ssh or rdsh, with the options by
/// which it finds the hosts.
fn script(network: &Network, is_ssh: bool, line: &str) -> Setup {
    let program = if is_ssh {
        SSH.to_owned()
    } else {
        built("rdsh")
    };
    let config = network.own("ssh_config");
    let text = format!(
        "R=\"{program} -F {}\"; cd \"$(mktemp -d -p .)\" || exit\n{line}\n",
        config.display()
    );
    let shell = network.program("/bin/bash", if is_ssh { "ssh" } else { "rdsh" });
    shell.arg("-c").arg(text)
}
