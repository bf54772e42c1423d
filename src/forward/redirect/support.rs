//! Finds out whether connections can be redirected on this host.

use std::{fs, io, net::Ipv4Addr, os::fd::AsFd};

use rustix::{
    io::Errno,
    process::{PidfdFlags, getpid, pidfd_open},
    thread::{CapabilitySet, capabilities},
};

use super::{caller, entrance::Door, handover::SetupStep, system};

/// Returns the reason why connections cannot be redirected on this host, if there is one.
pub(super) fn obstacle() -> Option<String> {
    seccomp()
        .or_else(pidfd_getfd)
        .or_else(proc)
        .or_else(door)
        .or_else(|| yama(&fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").ok()?))
}

fn seccomp() -> Option<String> {
    match system::knows_notifications() {
        Ok(true) => None,
        Ok(false) => Some("the seccomp messages of this kernel have an unknown size".to_owned()),
        Err(errno) => Some(format!(
            "seccomp user notification is not available ({errno}): it needs Linux 5.9 with CONFIG_SECCOMP_FILTER, \
             and a container must allow the system call seccomp"
        )),
    }
}

/// Duplicates a descriptor of this process.
fn pidfd_getfd() -> Option<String> {
    let duplicate = || {
        let this = pidfd_open(getpid(), PidfdFlags::empty())?;
        let number = std::os::fd::AsRawFd::as_raw_fd(&this.as_fd());
        caller::duplicate(&this, number)
    };
    let errno = duplicate().err()?;
    // A limit of this process is no property of the host: it is named by what fails next.
    let is_limit = matches!(errno, Errno::MFILE | Errno::NFILE | Errno::NOMEM);
    (!is_limit).then(|| format!(
        "pidfd_getfd is not available ({errno}): it needs Linux 5.6, and a container must allow the system call"
    ))
}

/// Looks for this process in `/proc`, where the addresses are read that programs connect to.
fn proc() -> Option<String> {
    let this = getpid().as_raw_nonzero().to_string();
    let shown = fs::read_link("/proc/self");
    let is_shown = shown.is_ok_and(|shown| shown.as_os_str() == this.as_str());
    (!is_shown).then(|| "/proc does not show this process: mount it".to_owned())
}

/// Opens a door, as for a host that the program connects to.
fn door() -> Option<String> {
    let error = Door::open(Ipv4Addr::LOCALHOST.into()).err()?;
    let is_forbidden = error.kind() == io::ErrorKind::PermissionDenied;
    is_forbidden.then(|| {
        format!(
            "this user may not attach a filter to a socket ({error}): allow the socket option SO_ATTACH_FILTER, \
             or run rdforward as root"
        )
    })
}

/// Returns the obstacle that a value of `kernel.yama.ptrace_scope` is.
fn yama(scope: &str) -> Option<String> {
    let is_allowed = match scope.trim() {
        "2" => {
            let capabilities = capabilities(None);
            capabilities.is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_PTRACE))
        }
        "3" => false,
        _ => true,
    };
    (!is_allowed).then(|| {
        format!(
            "kernel.yama.ptrace_scope is {}, so this process may not take the sockets of its child processes; \
             set it to 1 or 0",
            scope.trim()
        )
    })
}

/// Explains the failure of a step in the new process.
pub(super) fn explain(step: SetupStep, errno: Errno) -> String {
    match (step, errno) {
        (SetupStep::Filter, Errno::BUSY) => {
            "the connections of this process are already redirected or watched by another program (seccomp allows one \
             listener), for example because this command runs inside a redirected command"
                .to_owned()
        }
        (SetupStep::NoNewPrivileges, _) => format!("cannot set no_new_privs: {errno}"),
        (SetupStep::Filter, _) => format!("cannot install the seccomp filter: {errno}"),
        (SetupStep::Pass, _) => format!("cannot pass the seccomp listener: {errno}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn yama_may_forbid_it() {
        assert_eq!(yama("0\n"), None);
        assert_eq!(yama("1\n"), None);
        assert!(yama("3\n").unwrap().contains("ptrace_scope is 3"));
    }

    #[test]
    fn a_second_listener_is_explained() {
        let reason = explain(SetupStep::Filter, Errno::BUSY);
        assert!(reason.contains("one listener"), "{reason}");
    }
}
