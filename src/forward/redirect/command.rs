//! The COMMAND: starts it with the filter, and waits for its end.

use std::{
    ffi::OsStr,
    io,
    process::{Command, ExitStatus},
    sync::Arc,
};

use rustix::process::Pid;
use tokio::process::Child;
use tokio_util::{
    sync::{CancellationToken, WaitForCancellationFutureOwned},
    task::AbortOnDropHandle,
};

use super::{
    Destinations,
    filter::{self, Handed, connect_filter, handover},
    notification::Notifications,
    supervisor::{self, Entering, Supervisor},
    system,
};
use crate::process;

/// A running program whose connections are redirected, as are those of its child processes. The redirection ends when
/// the value is dropped; the processes go on.
#[derive(Debug)]
pub(crate) struct RedirectedCommand {
    child: Child,
    entering: Entering,
    over: CancellationToken,
    _supervisor: AbortOnDropHandle<()>,
}

/// The reason why a program has not been started.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    /// The program does not exist: shells exit with 127.
    #[error("cannot find {program}: {error}")]
    NotFound {
        /// The program as the user typed it.
        program: String,
        /// What the kernel reports.
        error: io::Error,
    },
    /// The program exists and cannot be executed: shells exit with 126.
    #[error("cannot execute {program}: {error}")]
    CannotExecute {
        /// The program as the user typed it.
        program: String,
        /// What the kernel reports.
        error: io::Error,
    },
    /// The kernel, a container or a setting does not allow redirection. The text says which.
    #[error("cannot redirect connections on this host: {0}")]
    Unusable(String),
    /// This process has no descriptors or no memory left, or cannot bind the loopback address.
    #[error("cannot prepare the redirection of connections: {0}")]
    Prepare(#[source] io::Error),
}

impl RedirectedCommand {
    /// Starts a program. It inherits the standard streams, the working directory, the process group, and the limits
    /// that this process was started with. A name without a slash is looked up in `PATH`. Blocks until the program has
    /// been executed. Must be called within a tokio runtime. The program is killed when the calling thread ends.
    ///
    /// # Errors
    ///
    /// Fails if the program cannot be executed, or if connections cannot be redirected here. No process is left then.
    pub(crate) fn start<D: Destinations>(
        mut command: Command,
        destinations: D,
    ) -> Result<Self, StartError> {
        if let Some(reason) = filter::obstacle() {
            return Err(StartError::Unusable(reason));
        }
        let filter = connect_filter();
        let filter = filter.map_err(|error| StartError::Unusable(error.to_string()))?;
        let (handover, takeover) = handover().map_err(|errno| StartError::Prepare(errno.into()))?;

        let program = command.get_program().to_owned();
        system::install_before_exec(&mut command, filter, handover);
        let mut command = tokio::process::Command::from(command);
        let spawned = process::restored_for(|| command.spawn());
        // Closes the new process's end of the socket pair here.
        drop(command);

        let handed = takeover.take();
        let child = match (spawned, &handed) {
            (Ok(child), _) => child,
            (Err(_), Ok(Handed::Failed(step, errno))) => {
                return Err(StartError::Unusable(filter::explain(*step, *errno)));
            }
            (Err(error), _) => return Err(not_executed(&program, error)),
        };
        let notifications = match handed {
            Ok(Handed::Listener(listener)) => Notifications::new(listener),
            Ok(Handed::Failed(_, errno)) | Err(errno) => Err(errno.into()),
            Ok(Handed::Nothing) => Err(io::ErrorKind::UnexpectedEof.into()),
        };
        let notifications = match notifications {
            Ok(notifications) => notifications,
            Err(error) => return Err(StartError::Prepare(killed(child, error))),
        };
        let entering = Arc::default();
        let supervisor = Supervisor::new(notifications, destinations, Arc::clone(&entering));
        let over = CancellationToken::new();
        let ended = over.clone();
        let supervisor = tokio::spawn(async move {
            Arc::new(supervisor).run().await;
            ended.cancel();
        });
        Ok(Self {
            child,
            entering,
            over,
            _supervisor: AbortOnDropHandle::new(supervisor),
        })
    }

    /// The program's process. None after [`wait`](Self::wait) has returned the status, when the number may be used
    /// again.
    pub(crate) fn pid(&self) -> Option<Pid> {
        Pid::from_raw(i32::try_from(self.child.id()?).ok()?)
    }

    /// Waits for the end of the program. Every connection that its `connect()` has reported as made has been given to
    /// [`Destinations::attach`] by then. Child processes of the program that still live are redirected until this value
    /// is dropped.
    ///
    /// # Cancel safety
    ///
    /// The future may be dropped and the function called again.
    ///
    /// # Errors
    ///
    /// Fails if the kernel has discarded the status, because SIGCHLD is ignored.
    pub(crate) async fn wait(&mut self) -> io::Result<ExitStatus> {
        let status = self.child.wait().await;
        supervisor::settle(&self.entering).await;
        status
    }

    /// Returns a future that completes when the program and all processes that it has started have ended.
    ///
    /// # Cancel safety
    ///
    /// Safe.
    pub(crate) fn ended(&self) -> WaitForCancellationFutureOwned {
        self.over.clone().cancelled_owned()
    }
}

/// Kills a program whose connections cannot be redirected, because this process has run out of descriptors. tokio
/// collects the status of a child that is dropped.
fn killed(mut child: Child, error: io::Error) -> io::Error {
    match child.start_kill() {
        Ok(()) => error,
        Err(kill) => io::Error::other(format!("{error}; the program still runs: {kill}")),
    }
}

fn not_executed(program: &OsStr, error: io::Error) -> StartError {
    let program = program.to_string_lossy().into_owned();
    match error.kind() {
        io::ErrorKind::NotFound => StartError::NotFound { program, error },
        _ => StartError::CannotExecute { program, error },
    }
}
