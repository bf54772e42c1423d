//! The seccomp filter: `connect()` and the reading of `SO_ERROR` are reported, and every other system call is allowed.

use std::{collections::BTreeMap, env::consts::ARCH};

use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition,
    SeccompFilter, SeccompRule, TargetArch,
};

/// The action that stands for "report to the listener" until [`patched`] replaces it. seccompiler has no such action,
/// and no other instruction of the program has this value.
const PLACEHOLDER: SeccompAction = SeccompAction::Trace(0);

/// Returns the filter for the architecture of this program.
///
/// # Errors
///
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

/// Returns the condition that an argument, a C `int`, has this value.
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
