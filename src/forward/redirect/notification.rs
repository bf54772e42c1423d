//! The listener of the filter: receives the calls that the filter reports, and sends the answers; the thread that made
//! the call, its memory and sockets.

use std::{
    fs::{self, File},
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6},
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::FileExt,
    },
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::OFlags,
    io::Errno,
    process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open},
};
use tokio::io::{Interest, unix::AsyncFd};

use super::system;

/// The listener of the filter. Only one task may receive from it.
#[derive(Debug)]
pub(super) struct Notifications(AsyncFd<OwnedFd>);

/// A system call that waits for an answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct SuspendedCall {
    /// The kernel's name of the call.
    pub(super) id: u64,
    pub(super) thread: Pid,
    /// The descriptor of the socket in the calling process.
    pub(super) descriptor: i32,
    /// What the call is to do.
    pub(super) request: Request,
}

/// What a system call is to do. Pointers are those of the calling process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Request {
    /// `connect()`.
    Connect {
        /// The place of the address.
        address: u64,
        /// The length of the address in bytes.
        length: usize,
    },
    /// `getsockopt()` of the option `SO_ERROR`.
    SocketError {
        /// The place of the value.
        value: u64,
        /// The place of the length of the value.
        length: u64,
    },
}

/// What the caller's system call returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// What the kernel returns without the filter.
    FromKernel,
    /// Success.
    Done,
    /// An error.
    Failed(Errno),
}

impl Notifications {
    pub(super) fn new(listener: OwnedFd) -> io::Result<Self> {
        system::watch(listener, Interest::READABLE).map(Self)
    }

    /// Receives the next call. Returns none after the last process with the filter has ended.
    /// A future that is dropped has received no call.
    /// Fails if the kernel refuses to deliver calls, which it does in no state that is known.
    pub(super) async fn next(&self) -> io::Result<Option<SuspendedCall>> {
        loop {
            let mut ready = self.0.readable().await?;
            match self.pending()? {
                Pending::Call => {
                    if let Some(call) = self.receive()? {
                        return Ok(Some(call));
                    }
                }
                Pending::Nothing => ready.clear_ready(),
                Pending::End => return Ok(None),
            }
        }
    }

    /// Returns true if the caller still waits for an answer.
    pub(super) fn is_valid(&self, call: &SuspendedCall) -> bool {
        system::is_valid(self.0.as_fd(), call.id)
    }

    /// Makes the caller's system call return. Returns false if the caller does not wait any more: it has ended, or a
    /// signal has interrupted the call.
    pub(super) fn answer(&self, call: &SuspendedCall, answer: Answer) -> bool {
        let (error, flags) = match answer {
            Answer::FromKernel => (0, libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE),
            Answer::Done => (0, 0),
            Answer::Failed(errno) => (-errno.raw_os_error(), 0),
        };
        let response = libc::seccomp_notif_resp {
            id: call.id,
            val: 0,
            error,
            flags: u32::try_from(flags).expect("the flag is 1"),
        };
        match system::send(self.0.as_fd(), response) {
            Ok(()) => true,
            Err(Errno::NOENT) => false,
            Err(errno) => {
                tracing::warn!("cannot answer a connect(): {errno}");
                false
            }
        }
    }

    /// Receiving blocks while no call is pending, so this function asks the kernel first. A call that is withdrawn
    /// after the question does not make receiving block: it fails with `ENOENT`.
    fn pending(&self) -> Result<Pending, Errno> {
        let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
        match poll(&mut fds, Some(&Timespec::default())) {
            Ok(_) => {}
            Err(Errno::INTR) => return Ok(Pending::Nothing),
            Err(errno) => return Err(errno),
        }
        let events = fds[0].revents();
        if events.contains(PollFlags::IN) {
            Ok(Pending::Call)
        } else if events.intersects(PollFlags::HUP | PollFlags::ERR) {
            Ok(Pending::End)
        } else {
            Ok(Pending::Nothing)
        }
    }

    /// Receives the call that is pending. Returns none if it has been withdrawn.
    fn receive(&self) -> Result<Option<SuspendedCall>, Errno> {
        let received = match system::receive(self.0.as_fd()) {
            Err(Errno::NOENT | Errno::INTR) => return Ok(None),
            other => other?,
        };
        Ok(Some(SuspendedCall::from(&received)))
    }
}

impl From<&libc::seccomp_notif> for SuspendedCall {
    fn from(received: &libc::seccomp_notif) -> Self {
        let [descriptor, second, third, fourth, fifth, _] = received.data.args;
        let thread = i32::try_from(received.pid).ok().and_then(Pid::from_raw);
        let request = if libc::c_long::from(received.data.nr) == libc::SYS_getsockopt {
            Request::SocketError {
                value: fourth,
                length: fifth,
            }
        } else {
            Request::Connect {
                address: second,
                // A C `int`: the kernel ignores the upper half of the register.
                length: usize::try_from(lower_half(third)).unwrap_or(0),
            }
        };
        Self {
            id: received.id,
            // A thread that this process cannot see has the number 0. Looking for the largest number finds no thread.
            thread: thread.unwrap_or(Pid::from_raw(i32::MAX).expect("it is not 0")),
            descriptor: lower_half(descriptor),
            request,
        }
    }
}

enum Pending {
    Call,
    Nothing,
    End,
}

fn lower_half(register: u64) -> i32 {
    let [a, b, c, d, ..] = register.to_le_bytes();
    i32::from_le_bytes([a, b, c, d])
}

/// The size of the C structure `sockaddr_in`.
const V4_BYTES: usize = 16;
/// The size of the C structure `sockaddr_in6`. The kernel accepts it without its last member, the scope.
const V6_BYTES: usize = 28;
const V6_BYTES_WITHOUT_SCOPE: usize = 24;
/// The size of the C structure `sockaddr_storage`: the kernel accepts no longer address.
const MAX_BYTES: usize = 128;

/// Reads the address of a `connect()` from the memory of the calling thread. Returns none if it is not an IP address
/// that the kernel accepts.
/// Fails if the memory cannot be read: the thread has ended, the pointer is wrong, or this process has no permission.
pub(super) fn address(thread: Pid, address: u64, length: usize) -> io::Result<Option<SocketAddr>> {
    if length > MAX_BYTES {
        return Ok(None);
    }
    let mut bytes = [0; V6_BYTES];
    let bytes = &mut bytes[..length.min(V6_BYTES)];
    read(thread, address, bytes)?;
    Ok(parse(bytes))
}

/// Writes the value of a socket option to the memory of the calling thread, as `getsockopt()` does.
/// Fails as `getsockopt()` does: the length is negative, or a pointer is wrong.
pub(super) fn write_option(
    call: &SuspendedCall,
    place: u64,
    length: u64,
    value: i32,
) -> Result<(), Errno> {
    let mut room = [0; 4];
    read(call.thread, length, &mut room).map_err(|_| Errno::FAULT)?;
    let room = usize::try_from(i32::from_ne_bytes(room)).map_err(|_| Errno::INVAL)?;
    let value = value.to_ne_bytes();
    let written = room.min(value.len());
    system::write_memory(call.thread, place, &value[..written])?;
    let written = i32::try_from(written).unwrap_or(0);
    system::write_memory(call.thread, length, &written.to_ne_bytes())
}

fn read(thread: Pid, address: u64, bytes: &mut [u8]) -> io::Result<()> {
    let memory = File::open(format!("/proc/{}/mem", thread.as_raw_nonzero()))?;
    memory.read_exact_at(bytes, address)
}

/// Returns a descriptor of a thread, which becomes readable when the thread ends.
/// Fails if the thread has ended, or if this process has no descriptors left.
pub(super) fn open_thread(thread: Pid) -> Result<OwnedFd, Errno> {
    /// Opens a thread that is not the first of its process. Linux 6.9 has it; the value is that of `O_EXCL`.
    const PIDFD_THREAD: PidfdFlags = PidfdFlags::from_bits_retain(OFlags::EXCL.bits());
    match pidfd_open(thread, PIDFD_THREAD) {
        Err(Errno::INVAL) => open_process(thread),
        other => other,
    }
}

/// Returns a descriptor of the process to which a thread belongs.
/// Fails if the thread has ended, or if this process has no descriptors left.
pub(super) fn open_process(thread: Pid) -> Result<OwnedFd, Errno> {
    let status = fs::read_to_string(format!("/proc/{}/status", thread.as_raw_nonzero()));
    let status = status.map_err(|error| errno_of(&error))?;
    let group = status.lines().find_map(|line| line.strip_prefix("Tgid:"));
    let group = group.and_then(|group| Pid::from_raw(group.trim().parse().ok()?));
    pidfd_open(group.ok_or(Errno::SRCH)?, PidfdFlags::empty())
}

/// Returns a duplicate of a descriptor of a thread: both are the same open description.
/// Fails with `EBADF` if the thread has no such descriptor.
pub(super) fn duplicate(thread: impl AsFd, descriptor: i32) -> Result<OwnedFd, Errno> {
    // rustix accepts no negative number.
    if descriptor < 0 {
        return Err(Errno::BADF);
    }
    pidfd_getfd(thread, descriptor, PidfdGetfdFlags::empty())
}

/// The errno of a failed system call.
pub(super) fn errno_of(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

/// Parses the address that a program gives to `connect()`.
fn parse(bytes: &[u8]) -> Option<SocketAddr> {
    let family = u16::from_ne_bytes(array(bytes, 0)?);
    let port = u16::from_be_bytes(array(bytes, 2)?);
    match i32::from(family) {
        libc::AF_INET if bytes.len() >= V4_BYTES => {
            let ip = Ipv4Addr::from(array::<4>(bytes, 4)?);
            Some(SocketAddrV4::new(ip, port).into())
        }
        libc::AF_INET6 if bytes.len() >= V6_BYTES_WITHOUT_SCOPE => {
            let flow = u32::from_be_bytes(array(bytes, 4)?);
            let ip = Ipv6Addr::from(array::<16>(bytes, 8)?);
            let scope = array(bytes, 24).map_or(0, u32::from_ne_bytes);
            Some(SocketAddrV6::new(ip, port, flow, scope).into())
        }
        _ => None,
    }
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at + N)?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_parsed() {
        let v4 = [&[2, 0, 0x15, 0x38, 192, 0, 2, 1][..], &[0; 8]].concat();
        assert_eq!(parse(&v4), Some("192.0.2.1:5432".parse().unwrap()));
        let mut v6 = vec![10, 0, 0, 80, 0, 0, 0, 0];
        v6.extend(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1).octets());
        assert_eq!(parse(&v6), Some("[fe80::1]:80".parse().unwrap()));
        v6.extend([3, 0, 0, 0]);
        assert_eq!(parse(&v6), Some("[fe80::1%3]:80".parse().unwrap()));
    }

    #[test]
    fn what_is_no_ip_address_is_for_the_kernel() {
        assert_eq!(parse(&[]), None);
        assert_eq!(parse(&[2, 0, 0x15, 0x38, 192, 0, 2, 1]), None);
        assert_eq!(parse(&[10; 20]), None);
        assert_eq!(parse(b"\x01\0/run/postgresql/socket"), None);
        assert_eq!(parse(&[0; 28]), None);
    }

    #[test]
    fn the_process_of_a_thread_is_found() {
        std::thread::spawn(|| {
            let thread = rustix::thread::gettid();
            assert_ne!(thread, rustix::process::getpid());
            assert!(open_process(thread).is_ok());
            assert!(open_thread(thread).is_ok());
        })
        .join()
        .unwrap();
    }
}
