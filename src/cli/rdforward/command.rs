//! Runs a command whose connections to the other host go through the tunnel.

use std::{
    fs, io, mem,
    net::{IpAddr, SocketAddr, ToSocketAddrs},
    os::unix::process::ExitStatusExt,
    process::{Command, ExitStatus},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::Context;
use futures::{FutureExt, future::BoxFuture};
use rustix::{
    io::Errno,
    process::{Pid, Signal, kill_process},
};
use tokio::{net::TcpStream, sync::oneshot, time::timeout};

use super::{
    args::{ForwardOptions, ForwardRunArgs},
    near::{NearSide, TunnelOutcome},
    peer::ForwardPeer,
};
use crate::{
    Direction,
    cli::shared::{
        message::{Console, sentence},
        run::Exit,
        signals::{Caught, EndingSignals},
    },
    forward::{
        redirect::{Destinations, RedirectedCommand, StartError, sent_by_terminal},
        tunnel::{
            flows::{FlowLabel, OpenedFlow, TunnelHandle},
            messages::{OpenTarget, RefusalKind},
            socket::LocalSocket,
        },
    },
};

/// Runs the command until it and its child processes have ended. Returns how the program ends.
pub(super) fn run(
    args: &ForwardRunArgs,
    peer: ForwardPeer,
    command: Command,
    console: &Console,
) -> Exit {
    carry_out(args, peer, command, console).unwrap_or_else(|error| {
        console.error(&sentence(&error));
        Exit::Connection
    })
}

fn carry_out(
    args: &ForwardRunArgs,
    peer: ForwardPeer,
    command: Command,
    console: &Console,
) -> anyhow::Result<Exit> {
    let side = NearSide::start(&args.peer, console)?;
    let nothing = ForwardOptions {
        local: Vec::new(),
        remote: Vec::new(),
        dynamic: Vec::new(),
    };
    let tunnel = side.tunnel(&nothing, None)?;
    let run = CommandRun {
        command,
        known: known_addresses(args, &peer),
        limit: args.peer.stream.config(Direction::Both).timeout,
        handle: tunnel.handle(),
        console: console.clone(),
        was_used: Arc::default(),
    };
    let (connected, connecting) = oneshot::channel();
    let (interrupt, interrupted) = oneshot::channel();
    let signal = interrupted.map(Result::ok).boxed().shared();
    let running = side.connect(tunnel, peer, signal, false, |address| {
        // The receiver has gone if a signal came first.
        let _ = connected.send(address);
    })?;
    let work = run.carry_out(running, connecting, interrupt);
    let ended = futures::executor::block_on(side.control.spawn(work))??;
    Ok(ended.exit(side.console()))
}

/// A command, and what it needs of the tunnel that carries its connections.
struct CommandRun {
    command: Command,
    /// The addresses by which the command names the other host.
    known: Vec<IpAddr>,
    /// How long a connection may take to be made.
    limit: Duration,
    handle: TunnelHandle,
    console: Console,
    /// True once a connection of the command was redirected.
    was_used: Arc<AtomicBool>,
}

impl CommandRun {
    /// Runs the command once the tunnel is connected. `running` is the tunnel until it ends, `connecting` the address
    /// of the other host, and `interrupt` takes a signal that ends the tunnel before.
    async fn carry_out(
        mut self,
        mut running: BoxFuture<'static, TunnelOutcome>,
        connecting: oneshot::Receiver<IpAddr>,
        interrupt: oneshot::Sender<Caught>,
    ) -> anyhow::Result<RunOutcome> {
        let mut signals = CommandSignals::catch().context("cannot catch signals")?;
        let address = tokio::select! {
            Ok(address) = connecting => address,
            outcome = &mut running => return Ok(RunOutcome::Tunnel(outcome)),
            caught = signals.all.next() => {
                let _ = interrupt.send(caught);
                return Ok(RunOutcome::Tunnel(running.await));
            }
        };
        self.known.push(address.to_canonical());
        let destinations = HostPorts {
            addresses: mem::take(&mut self.known).into(),
            handle: self.handle.clone(),
            limit: self.limit,
            console: self.console.clone(),
            was_used: Arc::clone(&self.was_used),
        };
        let command = mem::replace(&mut self.command, Command::new(""));
        match RedirectedCommand::start(command, destinations) {
            Ok(command) => self.supervise(command, running, signals).await,
            Err(error) => {
                self.handle.close();
                running.await;
                Ok(RunOutcome::NotStarted(error))
            }
        }
    }

    /// Waits until the command, all processes that it has started, and then the tunnel have ended. Signals go to the
    /// command while it runs.
    async fn supervise(
        &self,
        mut command: RedirectedCommand,
        mut running: BoxFuture<'static, TunnelOutcome>,
        mut signals: CommandSignals,
    ) -> anyhow::Result<RunOutcome> {
        let pid = command.pid();
        let ended = command.ended();
        let mut ended = std::pin::pin!(ended);
        let mut was_broken = false;
        let mut status = None;
        while status.is_none() || !was_broken {
            tokio::select! {
                exited = command.wait(), if status.is_none() => {
                    status = Some(exited.context("cannot wait for the command")?);
                    self.note_children(ended.as_mut()).await;
                }
                () = &mut ended, if status.is_some() => break,
                outcome = &mut running, if !was_broken => {
                    // The command finds its connections reset, and decides itself whether it goes on.
                    outcome.print(&self.console);
                    was_broken = true;
                }
                caught = signals.all.next() => match pid.filter(|_| status.is_none()) {
                    Some(pid) => signals.pass_on(pid, caught.number),
                    None => return Ok(RunOutcome::Tunnel(TunnelOutcome::interrupted(caught.number))),
                },
            }
        }
        let status = status.context("the command has no status")?;
        if !self.was_used.load(Ordering::Relaxed) {
            self.console.note(
                "no connection of the command went through the tunnel, because it made none to an address of the other \
                 host; give the command an address, not a name that only the configuration of ssh has, or name one more \
                 with --addr HOST=ADDRESS",
            );
        }
        if !was_broken {
            // The last bytes of the command may be under way.
            self.handle.close();
            tokio::select! {
                outcome = running => {
                    was_broken = outcome.exit != Exit::Ok;
                    outcome.print(&self.console);
                }
                caught = signals.all.next() => {
                    return Ok(RunOutcome::Tunnel(TunnelOutcome::interrupted(caught.number)));
                }
            }
        }
        Ok(RunOutcome::Ended { status, was_broken })
    }

    /// Says that the run goes on, if the command has left processes behind.
    async fn note_children(&self, ended: impl Future<Output = ()>) {
        if timeout(CHILDREN_END, ended).await.is_err() {
            self.console.note(
                "the command has ended, and the tunnel stays for the processes that it has left running; \
                 interrupt rdforward (^C) to end the tunnel, after which they can make no connection",
            );
        }
    }
}

/// How long the end of the last child process of a command may take before the user is told that the run goes on.
const CHILDREN_END: Duration = Duration::from_millis(500);

struct CommandSignals {
    all: EndingSignals,
    /// Whether a terminal has sent the last SIGINT, and the last SIGQUIT.
    by_terminal: [(Signal, Arc<AtomicBool>); 2],
}

impl CommandSignals {
    fn catch() -> io::Result<Self> {
        let all = EndingSignals::catch_for_command()?;
        let by_terminal = [
            (Signal::INT, sent_by_terminal(Signal::INT.as_raw())?),
            (Signal::QUIT, sent_by_terminal(Signal::QUIT.as_raw())?),
        ];
        Ok(Self { all, by_terminal })
    }

    /// Passes a signal on to the command. A terminal sends its signals to the command itself.
    fn pass_on(&self, command: Pid, number: u8) {
        let Some(signal) = Signal::from_named_raw(number.into()) else {
            return;
        };
        let mut origins = self.by_terminal.iter();
        let origin = origins.find(|(kind, _)| *kind == signal);
        if origin.is_none_or(|(_, by_terminal)| !by_terminal.load(Ordering::Relaxed)) {
            let _ = kill_process(command, signal);
        }
    }
}

enum RunOutcome {
    /// The tunnel has ended without the command, or a signal has ended both.
    Tunnel(TunnelOutcome),
    NotStarted(StartError),
    Ended {
        status: ExitStatus,
        /// True if the tunnel had broken before.
        was_broken: bool,
    },
}

impl RunOutcome {
    /// Prints what is to be said, and returns how the program ends.
    fn exit(self, console: &Console) -> Exit {
        match self {
            Self::Tunnel(outcome) => {
                outcome.print(console);
                outcome.exit
            }
            Self::NotStarted(error) => {
                console.error(&error.to_string());
                match error {
                    StartError::NotFound { .. } => Exit::Command(127),
                    StartError::CannotExecute { .. } => Exit::Command(126),
                    StartError::Unusable(_) | StartError::Prepare(_) => Exit::Local,
                }
            }
            Self::Ended { status, was_broken } => match status_code(status) {
                0 if was_broken => Exit::Connection,
                code => Exit::Command(code),
            },
        }
    }
}

/// Returns the status of the command as a shell shows it.
fn status_code(status: ExitStatus) -> u8 {
    let code = match (status.code(), status.signal()) {
        (Some(code), _) => code,
        (None, Some(signal)) => 128 + signal,
        (None, None) => 255,
    };
    u8::try_from(code).unwrap_or(255)
}

/// Returns the addresses by which the command names the other host: those of the name that the user has typed, and
/// those that the user has given for it. What the other host says of itself does not count: it could claim the address
/// of any host.
fn known_addresses(args: &ForwardRunArgs, peer: &ForwardPeer) -> Vec<IpAddr> {
    let host = match peer {
        ForwardPeer::Host(place) => place.host().unwrap_or_default(),
        ForwardPeer::Server { host, .. } => host,
        ForwardPeer::Ticket(ticket) => {
            return ticket.addresses.iter().map(IpAddr::to_canonical).collect();
        }
    };
    let given = args.peer.hosts.addresses.iter();
    let given = given.filter(|given| given.host == host);
    let names = given.flat_map(|given| given.addresses.iter().map(String::as_str));
    let all = names.chain([host]).filter_map(|name| {
        // A name that only ssh knows has no address here.
        (name, 0).to_socket_addrs().ok()
    });
    let all = all.flatten().map(|address| address.ip().to_canonical());
    all.collect()
}

/// The ports of the other host, as the command sees them.
#[derive(Clone)]
struct HostPorts {
    addresses: Arc<[IpAddr]>,
    handle: TunnelHandle,
    limit: Duration,
    console: Console,
    was_used: Arc<AtomicBool>,
}

impl Destinations for HostPorts {
    type Opened = OpenedFlow;

    fn covers(&self, address: SocketAddr) -> bool {
        self.addresses.contains(&address.ip())
    }

    async fn open(&self, address: SocketAddr) -> Result<OpenedFlow, Errno> {
        self.was_used.store(true, Ordering::Relaxed);
        let target = OpenTarget::OwnPort {
            address: address.ip(),
            port: address.port(),
        };
        let label = FlowLabel {
            from: "the command".to_owned(),
            to: address.to_string(),
        };
        match timeout(self.limit, self.handle.open(&target, label)).await {
            Ok(opened) => opened.map_err(|refusal| errno(refusal.kind)),
            Err(_) => Err(Errno::TIMEDOUT),
        }
    }

    fn attach(&self, opened: OpenedFlow, socket: TcpStream) {
        opened.attach(LocalSocket::from(socket));
    }

    fn bypassed(&self, thread: Pid) {
        let number = thread.as_raw_nonzero();
        let name = fs::read_to_string(format!("/proc/{number}/comm")).unwrap_or_default();
        let name = name.trim();
        self.console.notice(|console| {
            console.warn(&format!(
                "process {number} ({name}) connects directly and not through the tunnel, because it forbids access to its memory"
            ));
        });
    }
}

/// Returns the error that a program receives for a connection that cannot be made.
fn errno(kind: RefusalKind) -> Errno {
    match kind {
        RefusalKind::Refused | RefusalKind::Full | RefusalKind::Other => Errno::CONNREFUSED,
        RefusalKind::Unreachable => Errno::NETUNREACH,
        RefusalKind::HostUnreachable | RefusalKind::Unknown => Errno::HOSTUNREACH,
        RefusalKind::Forbidden => Errno::ACCESS,
        RefusalKind::TimedOut => Errno::TIMEDOUT,
    }
}
