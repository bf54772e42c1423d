//! The seccomp filter: which calls are reported, whether this host supports it, and how the new process passes its
//! listener on.

use std::{
    collections::BTreeMap,
    env::consts::ARCH,
    fs,
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    net::Ipv4Addr,
    os::fd::{AsFd, OwnedFd},
};

use rustix::{
    cmsg_space,
    io::Errno,
    net::{
        AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
        SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, send, sendmsg,
        socketpair,
    },
    process::{PidfdFlags, getpid, pidfd_open},
    thread::{CapabilitySet, capabilities},
};
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition,
    SeccompFilter, SeccompRule, TargetArch,
};

use super::{entrance::Door, notification, system};

/// The action that stands for "report to the listener" until [`patched`] replaces it. seccompiler has no such action,
/// and no other instruction of the program has this value.
const PLACEHOLDER: SeccompAction = SeccompAction::Trace(0);

/// Returns the filter for the architecture of this program.
/// Fails if seccompiler does not know the architecture.
pub(super) fn connect_filter() -> Result<BpfProgram, BackendError> {
    let architecture = TargetArch::try_from(ARCH)?;
    let socket_error = SeccompRule::new(vec![
        argument(1, libc::SOL_SOCKET)?,
        argument(2, libc::SO_ERROR)?,
    ])?;
    let rules = BTreeMap::from([
        // An empty list of rules matches every argument.
        (libc::SYS_connect, Vec::new()),
        (libc::SYS_getsockopt, vec![socket_error]),
    ]);
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, PLACEHOLDER, architecture)?;
    let program = BpfProgram::try_from(filter)?;
    Ok(patched(program))
}

fn argument(index: u8, value: libc::c_int) -> Result<SeccompCondition, BackendError> {
    let value = u64::from(value.unsigned_abs());
    SeccompCondition::new(index, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, value)
}

/// Replaces two of the values that the program returns: the placeholder by the report to the listener, and the killing
/// of a process of another architecture by permission.
fn patched(mut program: BpfProgram) -> BpfProgram {
    let placeholder = u32::from(PLACEHOLDER);
    for instruction in &mut program {
        if u32::from(instruction.code) != libc::BPF_RET | libc::BPF_K {
            continue;
        }
        if instruction.k == placeholder {
            instruction.k = libc::SECCOMP_RET_USER_NOTIF;
        } else if instruction.k == libc::SECCOMP_RET_KILL_PROCESS {
            instruction.k = libc::SECCOMP_RET_ALLOW;
        }
    }
    program
}

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
        notification::duplicate(&this, number)
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

/// The first byte of the message that carries the listener. Every [`SetupStep`] has another number.
const LISTENER: u8 = 0;

/// What the new process was doing when the redirection failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SetupStep {
    /// Setting `no_new_privs`.
    NoNewPrivileges = 1,
    Filter = 2,
    /// Passing the listener.
    Pass = 3,
}

/// The new process's end of the socket pair. It is closed when the process becomes the program.
#[derive(Debug)]
pub(super) struct Handover(OwnedFd);

/// This process's end of the socket pair.
#[derive(Debug)]
pub(super) struct Takeover(OwnedFd);

/// What the new process has sent.
#[derive(Debug)]
pub(super) enum Handed {
    Listener(OwnedFd),
    Failed(SetupStep, Errno),
    /// Nothing: the process could not be made.
    Nothing,
}

/// Makes a socket pair.
/// Fails if this process has no descriptors left.
pub(super) fn handover() -> Result<(Handover, Takeover), Errno> {
    let (child, parent) = socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )?;
    Ok((Handover(child), Takeover(parent)))
}

impl Handover {
    /// Passes the listener. Async-signal-safe.
    /// Fails if the other end is gone.
    pub(super) fn pass(&self, listener: &OwnedFd) -> Result<(), Errno> {
        let fds = [listener.as_fd()];
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        control.push(SendAncillaryMessage::ScmRights(&fds));
        let message = message(LISTENER, 0);
        let bytes = [IoSlice::new(&message)];
        sendmsg(&self.0, &bytes, &mut control, SendFlags::NOSIGNAL).map(drop)
    }

    /// Reports that a step has failed. Async-signal-safe.
    pub(super) fn fail(&self, step: SetupStep, errno: Errno) {
        let message = message(step as u8, errno.raw_os_error());
        // If this process is gone, the new process ends without a report.
        let _ = send(&self.0, &message, SendFlags::NOSIGNAL);
    }
}

impl Takeover {
    /// Receives what the new process has sent before it became the program or ended. Does not wait.
    /// Fails if this process has no descriptors left.
    pub(super) fn take(&self) -> Result<Handed, Errno> {
        let mut message = message(0, 0);
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let mut slices = [IoSliceMut::new(&mut message)];
        match recvmsg(&self.0, &mut slices, &mut control, flags) {
            Err(Errno::AGAIN) => return Ok(Handed::Nothing),
            Ok(received) if received.bytes == 0 => return Ok(Handed::Nothing),
            other => other?,
        };
        let listener = control.drain().find_map(|part| match part {
            RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
            _ => None,
        });
        let [number, errno @ ..] = message;
        let steps = [
            SetupStep::NoNewPrivileges,
            SetupStep::Filter,
            SetupStep::Pass,
        ];
        let failed = steps.into_iter().find(|step| *step as u8 == number);
        match (failed, listener) {
            (Some(step), _) => {
                let errno = Errno::from_raw_os_error(i32::from_ne_bytes(errno));
                Ok(Handed::Failed(step, errno))
            }
            (None, Some(listener)) => Ok(Handed::Listener(listener)),
            // The kernel drops a descriptor for which this process has no number left.
            (None, None) => Err(Errno::MFILE),
        }
    }
}

/// A number and an errno as the five bytes of a message.
fn message(number: u8, errno: i32) -> [u8; 5] {
    let [a, b, c, d] = errno.to_ne_bytes();
    [number, a, b, c, d]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_arch = "x86_64")]
    const NATIVE: u32 = 0xc000_003e;
    #[cfg(target_arch = "aarch64")]
    const NATIVE: u32 = 0xc000_00b7;
    #[cfg(target_arch = "riscv64")]
    const NATIVE: u32 = 0xc000_00f3;
    const I386: u32 = 0x4000_0003;
    const ARM: u32 = 0x4000_0028;

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

    #[test]
    fn only_connect_is_reported() {
        let filter = connect_filter().unwrap();
        let connect = u32::try_from(libc::SYS_connect).unwrap();
        for number in 0..600 {
            let action = if number == connect {
                libc::SECCOMP_RET_USER_NOTIF
            } else {
                libc::SECCOMP_RET_ALLOW
            };
            assert_eq!(run(&filter, NATIVE, number), action, "{number}");
        }
    }

    #[test]
    fn of_the_socket_options_only_the_error_is_reported() {
        let filter = connect_filter().unwrap();
        let number = u32::try_from(libc::SYS_getsockopt).unwrap();
        let action = |level: i32, option: i32| {
            let arguments = [3, level.unsigned_abs(), option.unsigned_abs()];
            run_with(&filter, NATIVE, number, arguments)
        };
        let reported = action(libc::SOL_SOCKET, libc::SO_ERROR);
        assert_eq!(reported, libc::SECCOMP_RET_USER_NOTIF);
        for (level, option) in [
            (libc::SOL_SOCKET, libc::SO_TYPE),
            (libc::IPPROTO_TCP, libc::SO_ERROR),
        ] {
            assert_eq!(action(level, option), libc::SECCOMP_RET_ALLOW);
        }
    }

    #[test]
    fn other_architectures_are_allowed() {
        let filter = connect_filter().unwrap();
        for architecture in [I386, ARM, 0] {
            for number in 0..600 {
                let action = run(&filter, architecture, number);
                assert_eq!(action, libc::SECCOMP_RET_ALLOW, "{architecture:x} {number}");
            }
        }
    }

    #[test]
    fn the_x32_calls_are_allowed() {
        let filter = connect_filter().unwrap();
        let connect = u32::try_from(libc::SYS_connect).unwrap();
        let action = run(&filter, NATIVE, connect | 0x4000_0000);
        assert_eq!(action, libc::SECCOMP_RET_ALLOW);
    }

    /// Runs a program with arguments of zero.
    fn run(program: &BpfProgram, architecture: u32, number: u32) -> u32 {
        run_with(program, architecture, number, [0; 3])
    }

    /// Runs a program of loads, jumps and returns, and gives the value that it returns.
    fn run_with(program: &BpfProgram, architecture: u32, number: u32, arguments: [u32; 3]) -> u32 {
        let mut accumulator = 0;
        let mut at = 0;
        loop {
            let instruction = &program[at];
            at += 1;
            match instruction.code {
                // BPF_LD | BPF_W | BPF_ABS
                0x20 => {
                    accumulator = match instruction.k {
                        0 => number,
                        4 => architecture,
                        16 => arguments[0],
                        24 => arguments[1],
                        32 => arguments[2],
                        other => panic!("loads {other}"),
                    }
                }
                // BPF_JMP | BPF_JEQ | BPF_K
                0x15 if accumulator == instruction.k => at += usize::from(instruction.jt),
                0x15 => at += usize::from(instruction.jf),
                // BPF_JMP | BPF_JA
                0x05 => at += usize::try_from(instruction.k).unwrap(),
                // BPF_RET | BPF_K
                0x06 => return instruction.k,
                other => panic!("instruction {other:x}"),
            }
        }
    }
}
