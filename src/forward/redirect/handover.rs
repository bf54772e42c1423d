//! The socket pair through which the new process passes its listener to this process.

use std::{
    io::{IoSlice, IoSliceMut},
    mem::MaybeUninit,
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
};

/// The first byte of the message that carries the listener. Every [`SetupStep`] has another number.
const LISTENER: u8 = 0;

/// What the new process was doing when the redirection failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SetupStep {
    /// Setting `no_new_privs`.
    NoNewPrivileges = 1,
    /// Installing the filter.
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
    /// The listener of the filter.
    Listener(OwnedFd),
    /// A step has failed.
    Failed(SetupStep, Errno),
    /// Nothing: the process could not be made.
    Nothing,
}

/// Makes a socket pair.
///
/// # Errors
///
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
    ///
    /// # Errors
    ///
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
    ///
    /// # Errors
    ///
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
