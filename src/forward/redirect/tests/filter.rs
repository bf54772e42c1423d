//! The filter, as an interpreter of its instructions sees it.

use seccompiler::BpfProgram;

use crate::forward::redirect::filter::connect_filter;

#[cfg(target_arch = "x86_64")]
const NATIVE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const NATIVE: u32 = 0xc000_00b7;
#[cfg(target_arch = "riscv64")]
const NATIVE: u32 = 0xc000_00f3;
const I386: u32 = 0x4000_0003;
const ARM: u32 = 0x4000_0028;

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
