//! The near end of a tunnel: its listeners here, and the way to the other end.

use std::net::IpAddr;

use anyhow::Context;
use futures::{FutureExt, future::BoxFuture};
use tokio::runtime::Handle;

use super::{
    args::{ForwardOptions, ForwardPeerOptions, RdforwardArgs},
    background::Readiness,
    peer::ForwardPeer,
    reports,
};
use crate::{
    Direction, Error, GeneratedKey, HandshakeFault, Key, Stream, StreamConfig,
    advice::Advised,
    carry::CarryThread,
    cli::shared::{
        message::{Console, sentence},
        run::{Exit, control_runtime},
        signals::{self, EndingCaught},
        supervision::{OwnEdges, Supervision},
        ticket,
    },
    connect,
    forward::{
        job::{ForwardWork, NearEnd, NearFault, TUNNEL_EDGE},
        tunnel::{
            FurtherStreams, ListenRoute, Tunnel, TunnelFault, TunnelRole,
            listener::ForwardListener, suitable_streams,
        },
    },
    host,
    process::raise_descriptor_limit,
    ssh::{
        explain,
        local_edge::{EdgeError, LocalEdge, LocalWork},
        outcome::ranked,
        plan::StageHost,
        protocol::EdgeId,
        supervisor::{LocalEdges, RunOutcome, event_queue},
    },
};

/// Forwards what the command line asks for, until the other end ends or a signal arrives. Returns how the program ends.
pub(super) fn run(args: &RdforwardArgs, peer: ForwardPeer, console: &Console) -> Exit {
    forward(args, peer, console).unwrap_or_else(|error| {
        console.error(&sentence(&error));
        Exit::Local
    })
}

fn forward(args: &RdforwardArgs, peer: ForwardPeer, console: &Console) -> anyhow::Result<Exit> {
    let side = NearSide::start(&args.peer, console)?;
    let signal = signals::watch(&side.control, console).context("cannot catch signals")?;
    // Before the other end is reached: a port that is taken is known at once.
    let ready = Readiness::new(args.forwards.remote.len(), args.background, console);
    let tunnel = side.tunnel(&args.forwards, Some(ready.clone()))?;
    let _ending = tunnel.end_guard();
    let handle = tunnel.handle();
    // A second signal ends the process at once.
    let signal = signals::shared(signal).inspect(move |_| handle.remove_paths());
    let shows_line = !args.background;
    let on_connected = move |_| ready.reached();
    let signal = signal.boxed().shared();
    let running = side.connect(tunnel, peer, signal, shows_line, on_connected)?;
    let outcome = futures::executor::block_on(running);
    outcome.print(console);
    Ok(outcome.exit)
}

/// What the near end of a tunnel runs on.
pub(super) struct NearSide<'a> {
    console: &'a Console,
    options: &'a ForwardPeerOptions,
    /// The runtime of the supervisor and of signals.
    pub(super) control: Handle,
    /// The thread of the tunnel: its sockets and its stream.
    thread: CarryThread,
}

/// How a tunnel has ended, with what the user is to be told.
#[derive(Debug)]
pub(super) struct TunnelOutcome {
    pub(super) exit: Exit,
    /// The first cause, and what followed from it.
    causes: Vec<String>,
}

impl TunnelOutcome {
    fn of(exit: Exit, cause: &impl ToString) -> Self {
        let causes = vec![cause.to_string()];
        Self { exit, causes }
    }

    /// Returns the end by a signal.
    pub(super) fn interrupted(number: u8) -> Self {
        let name = explain::signal(number);
        Self::of(Exit::Signal(number), &format!("interrupted by {name}"))
    }

    fn in_order() -> Self {
        Self {
            exit: Exit::Ok,
            causes: Vec::new(),
        }
    }

    /// Prints why the tunnel has ended, if it was not in order.
    pub(super) fn print(&self, console: &Console) {
        let mut causes = self.causes.iter();
        if let Some(first) = causes.next() {
            console.error(first);
        }
        for cause in causes {
            console.detail(cause);
        }
    }
}

impl<'a> NearSide<'a> {
    pub(super) fn start(
        options: &'a ForwardPeerOptions,
        console: &'a Console,
    ) -> anyhow::Result<Self> {
        raise_descriptor_limit();
        Ok(Self {
            console,
            options,
            control: control_runtime()?,
            thread: CarryThread::start("tunnel").context("cannot start a thread")?,
        })
    }

    pub(super) fn console(&self) -> &Console {
        self.console
    }

    /// Returns the near end of a tunnel that forwards this. Its listeners are open. `ready` counts those of the other
    /// end.
    pub(super) fn tunnel(
        &self,
        forwards: &ForwardOptions,
        ready: Option<Readiness>,
    ) -> anyhow::Result<Tunnel> {
        let role = TunnelRole {
            remote: forwards.remote.clone(),
            ..TunnelRole::default()
        };
        let observer = reports::observer(self.console, &forwards.remote, ready);
        let mut tunnel = Tunnel::near(role, observer);
        let local = forwards.local.iter();
        let local = local.map(|spec| (&spec.listen, ListenRoute::To(spec.target.clone())));
        let dynamic = forwards.dynamic.iter().map(|at| (at, ListenRoute::Socks));
        for (at, route) in local.chain(dynamic) {
            let bound = at.clone();
            let binding = self
                .thread
                .run(async move { ForwardListener::bind(&bound).await });
            let listener = futures::executor::block_on(binding).map_err(anyhow::Error::msg)?;
            reports::listening(self.console, at, listener.port(), "here");
            tunnel.add_listener(listener, route);
        }
        Ok(tunnel)
    }

    /// Connects the tunnel to the other end. Returns its end. `on_connected` receives the address of the other end when
    /// connections can be made. `shows_line` is true if a terminal shows a live line about the tunnel.
    pub(super) fn connect(
        &self,
        mut tunnel: Tunnel,
        peer: ForwardPeer,
        signal: EndingCaught,
        shows_line: bool,
        on_connected: impl FnOnce(IpAddr) + Send + 'static,
    ) -> anyhow::Result<BoxFuture<'static, TunnelOutcome>> {
        let made = Key::generate()?;
        let key = match &peer {
            ForwardPeer::Host(_) => made.key(),
            ForwardPeer::Server { key, .. } => key,
            ForwardPeer::Ticket(ticket) => &ticket.key,
        };
        tunnel.set_further(self.further_streams(key.clone()));
        let console = self.console.clone();
        let counts = tunnel.counts();
        let connected = Box::new(move |stream: &Stream| {
            console.detail(&format!(
                "the tunnel is connected, over {}: {}",
                stream.transport(),
                stream.transport_reason()
            ));
            on_connected(stream.peer_addr().ip());
            let line = shows_line.then(|| reports::live(&console, counts));
            Box::new(line) as Box<dyn Send>
        });
        let (end, fault) = NearEnd::new(tunnel, connected);
        match peer {
            ForwardPeer::Host(place) => self.supervise(end, fault, (place, made), signal),
            peer => Ok(self.dial(end, fault, peer, signal)),
        }
    }

    /// Returns how the tunnel gets further streams, whose first one has this key.
    fn further_streams(&self, key: Key) -> FurtherStreams {
        let chosen = self.options.streams;
        let streams = chosen.unwrap_or_else(|| suitable_streams(host::streams()));
        FurtherStreams {
            streams,
            most: streams,
            is_chosen: chosen.is_some(),
            key,
            config: self.options.stream.config(Direction::Both),
            place: None,
        }
    }

    /// Connects to an agent, over an edge that has this key.
    fn supervise(
        &self,
        end: NearEnd,
        fault: NearFault,
        (place, key): (StageHost, GeneratedKey),
        signal: EndingCaught,
    ) -> anyhow::Result<BoxFuture<'static, TunnelOutcome>> {
        let (events, queue) = event_queue();
        let mut own = OwnEdges {
            edges: LocalEdges::new(),
            events,
            queue,
        };
        let keys = [key];
        let config = self.options.stream.config(Direction::Both);
        let id = EdgeId::of_index(TUNNEL_EDGE);
        let key = keys[TUNNEL_EDGE].key().clone();
        let name = place.to_string();
        let events = own.events.local_edge(id);
        let (local, commands) = LocalEdge::new(end, key, name.clone(), config, events);
        own.edges.insert(id, commands);
        let thread = self.thread.clone();
        self.control
            .spawn(async move { thread.run(local.serve()).await });
        let supervision = Supervision {
            hosts: &self.options.hosts,
            stream: &self.options.stream,
            console: self.console,
            client_key: None,
            control: &self.control,
        };
        let work = ForwardWork::new(place);
        let observe = Box::new(|_: &mut ForwardWork| ());
        let running = supervision.start(work, vec![name], &keys, own, observe, signal)?;
        Ok(async move {
            match running.await {
                Ok(summary) => outcome_of(&summary.outcome, fault.take().as_ref()),
                Err(_) => TunnelOutcome::of(Exit::Local, &"the supervisor failed"),
            }
        }
        .boxed())
    }

    /// Connects to a server, or to the end that has made a ticket.
    fn dial(
        &self,
        mut end: NearEnd,
        fault: NearFault,
        peer: ForwardPeer,
        signal: EndingCaught,
    ) -> BoxFuture<'static, TunnelOutcome> {
        let config = self.options.stream.config(Direction::Both);
        let console = self.console.clone();
        let thread = self.thread.clone();
        let work = async move {
            let interrupted = async {
                match signal.await {
                    Some(caught) => caught.number,
                    None => std::future::pending().await,
                }
            };
            let mut interrupted = std::pin::pin!(interrupted);
            let stream = tokio::select! {
                stream = reach_peer(&peer, &config) => stream,
                number = &mut interrupted => return TunnelOutcome::interrupted(number),
            };
            let mut stream = match stream {
                Ok(stream) => stream,
                Err(error) => return TunnelOutcome::of(exit_of(&error), &sentence(&error)),
            };
            if stream.is_fallback() {
                let reason = stream.transport_reason();
                console.note(&format!("the data goes over TCP: {reason}"));
            }
            let handle = end.handle();
            let interrupted = interrupted.inspect(|_| {
                if let Some(handle) = &handle {
                    handle.give_reason(INTERRUPTED);
                }
            });
            let ended = tokio::select! {
                ended = end.carry(&mut stream) => ended.map_err(EdgeEnd::Failed),
                number = interrupted => Err(EdgeEnd::Interrupted(number)),
            };
            let outcome = match ended {
                Ok(()) => TunnelOutcome::in_order(),
                Err(EdgeEnd::Interrupted(number)) => {
                    stream.abort(INTERRUPTED);
                    TunnelOutcome::interrupted(number)
                }
                Err(EdgeEnd::Failed(failure)) => {
                    let text = failure.to_string();
                    stream.abort(&text);
                    let exit = fault
                        .take()
                        .map_or(Exit::Connection, |fault| exit_after(&fault));
                    TunnelOutcome::of(exit, &text)
                }
            };
            stream.close().await;
            outcome
        };
        async move { thread.run(work).await }.boxed()
    }
}

/// What the other end receives after a signal.
const INTERRUPTED: &str = "rdforward was interrupted";

enum EdgeEnd {
    Interrupted(u8),
    Failed(EdgeError),
}

/// Connects to the other end of a tunnel, without ssh.
async fn reach_peer(peer: &ForwardPeer, config: &StreamConfig) -> anyhow::Result<Stream> {
    match peer {
        ForwardPeer::Ticket(ticket) => ticket::dial(ticket, "rdforward --listen", config).await,
        ForwardPeer::Server { host, port, key } => dial_server(host, *port, key, config).await,
        ForwardPeer::Host(_) => anyhow::bail!("a host of ssh has no port"),
    }
}

async fn dial_server(
    host: &str,
    port: u16,
    key: &Key,
    config: &StreamConfig,
) -> anyhow::Result<Stream> {
    match connect((host, port), key, config).await {
        Ok(stream) => Ok(stream),
        Err(error) => {
            let context = match &error {
                Error::Handshake {
                    fault: HandshakeFault::Key,
                    ..
                } => format!(
                    "the server at {host}:{port} does not know this key; its --key-file needs the line of this client"
                ),
                Error::Connect { .. } => format!(
                    "cannot reach `rdforward serve` at {host}:{port}; is it running there, and is the port open?"
                ),
                error => Advised(error.clone()).to_string(),
            };
            Err(anyhow::Error::from(error).context(context))
        }
    }
}

fn exit_of(error: &anyhow::Error) -> Exit {
    match Exit::from(error) {
        Exit::Remote | Exit::Local => Exit::Connection,
        exit => exit,
    }
}

/// Returns the exit code after a fault that is not one of the stream.
fn exit_after(fault: &TunnelFault) -> Exit {
    match fault {
        TunnelFault::CannotListen(_) => Exit::Local,
        _ => Exit::Connection,
    }
}

fn outcome_of(end: &RunOutcome, fault: Option<&TunnelFault>) -> TunnelOutcome {
    if let Some(number) = end.signal {
        return TunnelOutcome::interrupted(number);
    }
    let exit = match fault {
        Some(fault) => exit_after(fault),
        None if end.causes.is_empty() => return TunnelOutcome::in_order(),
        None => Exit::Connection,
    };
    let causes = ranked(&end.causes);
    let causes = causes.iter().map(|cause| cause.fault.text.clone());
    let own = fault.into_iter().map(ToString::to_string);
    let mut causes: Vec<_> = own.chain(causes).collect();
    causes.dedup();
    TunnelOutcome { exit, causes }
}
